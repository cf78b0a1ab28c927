"""Capsule layers against nested loops over every index, both pose types."""

from __future__ import annotations

import itertools

import pytest
import torch

from overlaycaps.models.layers import CapsuleLayer, PrimaryCapsules
from overlaycaps.routing.attention import AttentionRouting
from overlaycaps.routing.base import Capsules, PoseNorm, PoseShape, RoutingOptions
from tests import literal

VECTOR, MATRIX = PoseShape(4, 1), PoseShape(2, 2)
POSES = pytest.mark.parametrize("pose", [VECTOR, MATRIX], ids=["vector", "matrix"])


def make_attention(pose: PoseShape, num_children: int, num_parents: int) -> AttentionRouting:
    return AttentionRouting(pose, num_children, num_parents, RoutingOptions())


Norm = tuple[torch.Tensor, torch.Tensor]


def make_layer(
    pose: PoseShape, num_in: int, num_out: int, kernel_px: int, stride_px: int = 1
) -> tuple[CapsuleLayer, Norm]:
    torch.manual_seed(0)
    layer = CapsuleLayer(num_in, num_out, pose, kernel_px, make_attention, stride_px).double()
    norm = layer.routing.norm
    assert isinstance(norm, PoseNorm)
    # A LayerNorm that does something to every number apart, so that mixed-up numbers show.
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return layer, (norm.weight, norm.bias)


@POSES
@pytest.mark.parametrize(
    ("kernel_px", "stride_px"),
    [(1, 1), (2, 1), (3, 1), (2, 2), (1, 2)],
    ids=["1x1", "convolutional", "fully connected", "stride 2", "1x1 stride 2"],
)
def test_layer_equals_nested_loops(pose: PoseShape, kernel_px: int, stride_px: int) -> None:
    layer, norm = make_layer(pose, num_in=2, num_out=3, kernel_px=kernel_px, stride_px=stride_px)
    size = 4 if stride_px == 2 else 3
    poses = torch.randn(2, pose.rows, pose.columns, 2, size, size, dtype=torch.double)
    votes = layer.vote(Capsules(poses))
    expected = literal.route_layer(poses, layer.weight, kernel_px, None, pose.size**-0.5, norm, stride_px)
    first = layer.route(votes).pose
    torch.testing.assert_close(first, expected, rtol=0, atol=1e-10)
    for _ in range(2):
        parents = expected
        expected = literal.route_layer(poses, layer.weight, kernel_px, parents, pose.size**-0.5, norm, stride_px)
        torch.testing.assert_close(layer.route(votes, Capsules(parents), 2).pose, expected, rtol=0, atol=1e-10)
    assert not torch.allclose(first, expected), "agreement changed nothing: the example proves nothing"


@POSES
def test_layer_keeps_samples_and_places_apart(pose: PoseShape) -> None:
    layer, _ = make_layer(pose, num_in=2, num_out=2, kernel_px=3)
    poses = torch.randn(2, pose.rows, pose.columns, 2, 5, 5, dtype=torch.double)
    before = layer.route(layer.vote(Capsules(poses))).pose
    poses[:, :, :, 1, 0, 0] += 1
    after = layer.route(layer.vote(Capsules(poses))).pose
    changed = (before != after).flatten(0, 2).any(0)
    assert changed.nonzero().tolist() == [[1, 0, 0]]


@POSES
def test_primary_capsules_equal_a_loop(pose: PoseShape) -> None:
    torch.manual_seed(0)
    primary = PrimaryCapsules(2, 3, pose).double()
    torch.nn.init.normal_(primary.norm.weight)
    features = torch.randn(2, 2, 7, 7, dtype=torch.double)
    poses = primary(features).pose
    assert poses.shape == (3, pose.rows, pose.columns, 2, 3, 3)
    for n, b, y, x in itertools.product(range(3), range(2), range(3), range(3)):
        patch = features[b, :, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3]
        raw = torch.zeros(pose.rows, pose.columns, dtype=torch.double)
        for r, c in itertools.product(range(pose.rows), range(pose.columns)):
            raw[r, c] = (primary.conv.weight[n * pose.size + r * pose.columns + c] * patch).sum()
        expected = literal.layer_norm(raw, primary.norm.weight, primary.norm.bias)
        torch.testing.assert_close(poses[n, :, :, b, y, x], expected, rtol=0, atol=1e-10)


def test_initial_weights_have_the_stated_variance() -> None:
    torch.manual_seed(0)
    layer = CapsuleLayer(16, 16, PoseShape(16, 1), 3, make_attention)
    expected = (16 / (16 * 16 * 9)) ** 0.5
    assert layer.weight.std().item() == pytest.approx(expected, rel=0.01)
