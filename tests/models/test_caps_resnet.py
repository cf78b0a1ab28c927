"""Capsules on a residual backbone: the published parameters, and that the configuration reaches the routing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from overlaycaps.config import SIZES
from overlaycaps.errors import UsageError
from overlaycaps.models import build_model
from overlaycaps.models.caps_resnet import build_for_images
from overlaycaps.models.matching import summarize_model
from overlaycaps.routing import SCHEDULES
from tests.models.test_resnet import count_block

BACKBONE = [3 * count_block(64, 64), count_block(64, 128) + 3 * count_block(128, 128)]


def count_capsules(num_in: int, kernel_px: int, num_out: int, side: int) -> int:
    """A side x side matrix for every child and parent, and one LayerNorm."""
    return num_in * kernel_px**2 * num_out * side**2 + 2 * side**2


def test_parameters_of_the_network_for_cifar_10() -> None:
    with torch.device("meta"):
        model = build_for_images(3, 32, num_classes=10, pose_size=16)
    expected = [
        27 * 64 + 128,
        *BACKBONE,
        128 * 32 * 16 + 32,  # no bias; LayerNorm
        count_capsules(32, 3, 32, side=4),
        count_capsules(32, 3, 32, side=4),
        count_capsules(32, 5, 10, side=4),
        16 + 1,
    ]
    assert expected == [1_856, 221_952, 1_116_416, 65_568, 147_488, 147_488, 128_032, 17]
    layers = model.describe_layers()
    assert [layer.parameters for layer in layers] == expected
    assert model.count_parameters() == 1_828_817
    assert [layer.shape[-1] for layer in layers[:6]] == [32, 32, 16, 16, 7, 5]


def test_parameters_of_the_network_for_cifar_100() -> None:
    with torch.device("meta"):
        model = build_for_images(3, 32, num_classes=100, pose_size=36, hidden_capsules=20)
    expected = [
        27 * 64 + 128,
        *BACKBONE,
        128 * 32 * 36 + 72,
        count_capsules(32, 3, 32, side=6),
        count_capsules(32, 3, 32, side=6),
        count_capsules(32, 5, 20, side=6),
        count_capsules(20, 1, 100, side=6),
        36 + 1,
    ]
    assert expected == [1_856, 221_952, 1_116_416, 147_528, 331_848, 331_848, 576_072, 72_072, 37]
    assert [layer.parameters for layer in model.describe_layers()] == expected
    assert model.count_parameters() == 2_799_629


def test_parameters_for_overlays() -> None:
    """One channel instead of three, and class capsules over 6x6 positions instead of 5x5."""
    summary = summarize_model("caps-resnet", SIZES["small"])
    assert summary.parameters == 1_828_817 - 2 * 9 * 64 + 32 * (36 - 25) * 10 * 16


def test_colour_images_and_hidden_capsules_are_read() -> None:
    torch.manual_seed(0)
    model = build_for_images(3, 16, num_classes=6, pose_size=4, hidden_capsules=5)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    logits = model(images)
    assert logits.shape == (2, 6)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    images[1, 2] = 255 - images[1, 2]
    assert not torch.allclose(model(images), logits), "the third channel makes no difference"


@pytest.mark.parametrize("change", [{"iterations": 3}, {"schedule": "sequential"}, {"scale_agreement": False}])
def test_the_configuration_reaches_the_routing(change: dict[str, object]) -> None:
    torch.manual_seed(0)
    config = replace(SIZES["tiny"], canvas_px=13)
    model = build_model("caps-resnet", config).eval()
    other = build_model("caps-resnet", replace(config, **change)).eval()  # type: ignore[arg-type]
    other.load_state_dict(model.state_dict())
    images = torch.randint(0, 256, (2, 13, 13), dtype=torch.uint8)
    assert (model(images) - other(images)).abs().max() > 1e-5


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_iteration_is_uniform_routing(schedule: str) -> None:
    torch.manual_seed(0)
    config = replace(SIZES["tiny"], canvas_px=13, schedule=schedule, iterations=1)
    attention = build_model("caps-resnet", config).eval()
    uniform = build_model("caps-resnet", replace(config, routing="uniform", iterations=3)).eval()
    uniform.load_state_dict(attention.state_dict())
    images = torch.randint(0, 256, (2, 13, 13), dtype=torch.uint8)
    torch.testing.assert_close(uniform(images), attention(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"pose_size": 8}, "square pose size, not 8"),
        ({"image_px": 12}, "images of 12 px are too small"),
        ({"image_channels": 0}, "image_channels is 0"),
        ({"hidden_capsules": 0}, "hidden_capsules is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    fitting = {"image_channels": 3, "image_px": 32, "num_classes": 10, "pose_size": 16}
    with pytest.raises(UsageError, match=message):
        build_for_images(**{**fitting, **sizes})  # type: ignore[arg-type]
