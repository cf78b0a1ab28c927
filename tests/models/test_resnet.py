"""ResNet-18 for small images: its parameters, and what a basic block computes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from overlaycaps.config import SIZES
from overlaycaps.models import build_model
from overlaycaps.models.matching import summarize_model
from overlaycaps.models.resnet import BasicBlock


def count_block(num_in: int, num_out: int) -> int:
    """3x3 and 3x3 convolution without bias, a scale and a shift a channel after each; a 1x1 shortcut if it widens."""
    count = 9 * num_in * num_out + 2 * num_out + 9 * num_out * num_out + 2 * num_out
    return count + (num_in * num_out + 2 * num_out if num_in != num_out else 0)


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_derived_by_hand(size: str) -> None:
    assert count_block(64, 64) == 73_984
    expected = [
        9 * 64 + 128,  # one channel in, BatchNorm
        count_block(64, 64) + count_block(64, 64),
        count_block(64, 128) + count_block(128, 128),
        count_block(128, 256) + count_block(256, 256),
        count_block(256, 512) + count_block(512, 512),
        512 * 10 + 10,
    ]
    assert expected == [704, 147_968, 525_568, 2_099_712, 8_393_728, 5_130]
    summary = summarize_model("resnet18", SIZES[size])
    assert [layer.parameters for layer in summary.layers] == expected
    assert summary.parameters == 11_172_810
    # The well-known count for three input channels.
    assert summary.parameters + 2 * 9 * 64 == 11_173_962


def test_classes_are_those_of_the_configuration() -> None:
    summary = summarize_model("resnet18", replace(SIZES["tiny"], num_classes=7))
    assert summary.layers[-1].shape == (7,)
    assert summary.parameters == 11_172_810 - 3 * 513


def test_a_block_without_residual_is_its_shortcut() -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 7, 7)
    same = BasicBlock(3, 3)
    torch.nn.init.zeros_(same.norm2.weight)
    torch.testing.assert_close(same(maps), maps.clamp_min(0), rtol=0, atol=0)

    wider = BasicBlock(3, 4, stride_px=2).eval()
    torch.nn.init.zeros_(wider.norm2.weight)
    assert isinstance(wider.shortcut, torch.nn.Conv2d)
    projected = torch.einsum("oi,biyx->boyx", wider.shortcut.weight[:, :, 0, 0], maps[:, :, ::2, ::2])
    # In evaluation, and never trained, BatchNorm divides by sqrt(1 + eps).
    expected = (projected / (1 + 1e-5) ** 0.5).clamp_min(0)
    torch.testing.assert_close(wider(maps), expected)


def test_a_block_adds_two_normalised_convolutions() -> None:
    torch.manual_seed(0)
    block = BasicBlock(3, 3).double()
    for norm in (block.norm1, block.norm2):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    maps = torch.randn(2, 3, 5, 5, dtype=torch.double)

    def convolve(maps: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
        shifted = [padded[:, :, y : y + 5, x : x + 5] for y in range(3) for x in range(3)]
        return torch.einsum("kbiyx,oik->boyx", torch.stack(shifted), weight.flatten(2))

    def normalize(maps: torch.Tensor, norm: torch.nn.BatchNorm2d) -> torch.Tensor:
        mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
        scaled = (maps - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return scaled * norm.weight[:, None, None] + norm.bias[:, None, None]

    inner = normalize(convolve(maps, block.conv1.weight), block.norm1).clamp_min(0)
    expected = (maps + normalize(convolve(inner, block.conv2.weight), block.norm2)).clamp_min(0)
    torch.testing.assert_close(block(maps), expected)


def test_evaluation_uses_running_statistics() -> None:
    torch.manual_seed(0)
    model = build_model("resnet18", replace(SIZES["tiny"], canvas_px=13))
    images = torch.randint(0, 256, (2, 13, 13), dtype=torch.uint8)
    trained = model(images)
    assert not torch.allclose(model.eval()(images), trained)
