"""Efficient-CapsNet: published parameters, routing against nested loops, lengths as probabilities."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from overlaycaps.config import SIZES
from overlaycaps.errors import UsageError
from overlaycaps.models import build_model
from overlaycaps.models.efficient_capsnet import SelfAttentionCapsules, attend, read_lengths, squash
from overlaycaps.models.matching import summarize_model
from overlaycaps.routing.base import Capsules, PoseShape, RoutingOptions, Votes
from overlaycaps.routing.self_attention import SelfAttentionRouting


def test_parameters_are_the_published_ones() -> None:
    expected = [
        25 * 32 + 32 + 64,  # convolution, its bias, BatchNorm's scale and shift
        9 * 32 * 64 + 64 + 128,
        9 * 64 * 64 + 64 + 128,
        9 * 64 * 128 + 128 + 256,
        25 * 128 + 128,  # depthwise: one kernel and one bias a channel
        16 * 10 * 8 * 16 + 16 * 10,  # matrices and log priors
        0,
    ]
    assert expected == [896, 18_624, 37_056, 74_112, 3_328, 20_640, 0]
    summary = summarize_model("efficient-capsnet", SIZES["small"])
    assert [layer.parameters for layer in summary.layers] == expected
    assert summary.parameters == 154_656
    shapes = [layer.shape for layer in summary.layers]
    assert shapes == [(32, 32, 32), (64, 30, 30), (64, 14, 14), (128, 6, 6), (16, 8), (10, 16), (10,)]


@pytest.mark.parametrize("canvas_px", range(13, 49))
def test_every_canvas_is_read_or_refused(canvas_px: int) -> None:
    config = replace(SIZES["tiny"], canvas_px=canvas_px)
    if 29 <= canvas_px <= 36:
        model = build_model("efficient-capsnet", config)
        assert model.count_parameters() == 154_656
        assert model(torch.zeros(2, canvas_px, canvas_px, dtype=torch.uint8)).shape == (2, 10)
    else:
        with pytest.raises(UsageError, match=rf"takes images of 29 to 36 px .* not of {canvas_px} px"):
            build_model("efficient-capsnet", config)


def attend_literally(votes: torch.Tensor, log_prior: torch.Tensor) -> torch.Tensor:
    """One sample, votes (I, J, Q), index by index."""
    num_in, num_out, size = votes.shape
    sums = torch.zeros(num_out, size, dtype=votes.dtype)
    for i in range(num_in):
        agreements = []
        for j in range(num_out):
            total = 0.0
            for other in range(num_in):
                for q in range(size):
                    total += votes[i, j, q].item() * votes[other, j, q].item()
            agreements.append(math.exp(total / math.sqrt(size)))
        for j in range(num_out):
            sums[j] += (agreements[j] / sum(agreements) + log_prior[i, j].item()) * votes[i, j]
    return sums


def test_routing_equals_nested_loops() -> None:
    torch.manual_seed(0)
    votes, log_prior = torch.randn(2, 3, 4, 5, dtype=torch.double), torch.randn(3, 4, dtype=torch.double)
    expected = torch.stack([attend_literally(sample, log_prior) for sample in votes])
    torch.testing.assert_close(attend(votes, log_prior), expected)


def test_layer_equals_the_general_routing() -> None:
    """The same mathematics written twice: here as published, in the table of routings for any layer."""
    torch.manual_seed(0)
    layer = SelfAttentionCapsules(3, 4, 2, 5).double()
    torch.nn.init.normal_(layer.weight)
    torch.nn.init.normal_(layer.prior_bias)
    poses = torch.randn(6, 3, 2, dtype=torch.double)
    routing = SelfAttentionRouting(PoseShape(5, 1), 3, 4, RoutingOptions()).double()
    with torch.no_grad():
        routing.log_prior.copy_(layer.prior_bias.view(3, 4))
    below = Capsules(poses.permute(1, 2, 0)[:, :, None, :, None, None])
    general = routing.first(Votes(below, layer.weight, kernel_px=1)).pose
    torch.testing.assert_close(squash(layer(poses)), general.flatten(2).permute(2, 0, 1), rtol=0, atol=1e-6)


def test_squash_keeps_the_direction_and_bounds_the_length() -> None:
    torch.manual_seed(0)
    poses = torch.randn(100, 6, dtype=torch.double) * torch.logspace(-2, 2, 100, dtype=torch.double)[:, None]
    squashed = squash(poses)
    for pose, short in zip(poses, squashed, strict=True):
        length = math.sqrt(sum(x * x for x in pose.tolist()))
        expected = (1 - 1 / math.exp(length)) / length
        torch.testing.assert_close(short, pose * expected, rtol=1e-3, atol=1e-9)
    assert (squashed.norm(dim=1) <= 1).all()


def test_the_probability_of_a_class_is_the_length_of_its_capsule() -> None:
    torch.manual_seed(0)
    poses = torch.randn(200, 16) * torch.logspace(-2, 0.3, 200)[:, None]
    lengths = squash(poses).norm(dim=1)
    logits = read_lengths(poses)
    torch.testing.assert_close(torch.sigmoid(logits), lengths, rtol=1e-3, atol=1e-5)
    assert ((logits > 0) == (lengths > 0.5)).all()
    assert 0 < (logits > 0).sum() < 200


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0, 100.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_lengths_of_any_size_can_be_learned_from(scale: float, label: float) -> None:
    poses = torch.full((1, 1, 16), scale, requires_grad=True)
    logits = read_lengths(poses)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, label))
    loss.backward()
    assert torch.isfinite(loss)
    assert logits.item() > -8.1
    assert poses.grad is not None and torch.isfinite(poses.grad).all()
    # The most confident wrong answer is corrected, not lost in a clamp.
    assert scale < 100 or label == 1 or (poses.grad > 0.1).all()


def test_size_and_routing_of_the_configuration_do_not_matter() -> None:
    torch.manual_seed(0)
    model = build_model("efficient-capsnet", SIZES["tiny"])
    other = build_model("efficient-capsnet", replace(SIZES["small"], routing="dynamic", iterations=3))
    other.load_state_dict(model.state_dict())
    images = torch.randint(0, 256, (2, 36, 36), dtype=torch.uint8)
    torch.testing.assert_close(other(images), model(images), rtol=0, atol=0)
    assert other.describe_routing() == {"pose": "vector", "routing": "self-attention", "routing_iterations": 1}
