"""Routings at the edges of float32, and under bfloat16 autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from overlaycaps.kernels import map_votes
from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions
from tests.routing.cases import CLASSES, CONVOLUTIONAL, EVERY_GRID, EVERY_POSE, EVERY_ROUTING, Grid, route

ITERATIONS = 3


def make_float_layer(name: str, pose: PoseShape, grid: Grid, options: RoutingOptions | None = None) -> CapsuleLayer:
    """A layer in float32 as it is before training."""
    torch.manual_seed(0)

    def make_routing(pose: PoseShape, num_children: int, num_parents: int) -> Routing:
        return CLASSES[name](pose, num_children, num_parents, options or RoutingOptions())

    return CapsuleLayer(4, 5, pose, grid.kernel_px, make_routing)


def make_float_below(pose: PoseShape, grid: Grid) -> Capsules:
    place = (3, grid.size_px, grid.size_px)
    return Capsules(torch.randn(4, pose.rows, pose.columns, *place), torch.rand(4, *place))


def differentiate(layer: CapsuleLayer, below: Capsules, result: Capsules) -> dict[str, Tensor]:
    """Gradients of a reading of the result: poses and activations below, the layer's parameters."""
    loss = result.pose.float().sin().sum()
    inputs: dict[str, Any] = {"poses": below.pose, **dict(layer.named_parameters())}
    if result.activation is not None:
        loss = loss + result.activation.float().sin().sum()
        inputs["activations"] = below.activation
    return dict(zip(inputs, torch.autograd.grad(loss, list(inputs.values())), strict=True))


def assert_finite(layer: CapsuleLayer, poses: Tensor, activation: Tensor) -> Capsules:
    below = Capsules(poses.requires_grad_(), activation.requires_grad_())
    result = route(layer, below, ITERATIONS)
    assert result.pose.isfinite().all()
    assert result.activation is None or result.activation.isfinite().all()
    for key, gradient in differentiate(layer, below, result).items():
        assert gradient.isfinite().all(), key
    return result


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("layer_norm", [True, False])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-6, 1e4])
def test_poses_of_any_size_are_routed(name: str, pose: PoseShape, grid: Grid, layer_norm: bool, size: float) -> None:
    layer = make_float_layer(name, pose, grid, RoutingOptions(layer_norm=layer_norm))
    below = make_float_below(pose, grid)
    assert below.activation is not None
    assert_finite(layer, size * below.pose, below.activation)


@EVERY_ROUTING
@EVERY_POSE
def test_equal_children_are_routed(name: str, pose: PoseShape) -> None:
    # All votes for a parent coincide: no variance, in `em`, and none left after a LayerNorm of equal numbers.
    layer = make_float_layer(name, pose, CONVOLUTIONAL)
    torch.nn.init.ones_(layer.weight)
    below = make_float_below(pose, CONVOLUTIONAL)
    assert below.activation is not None
    assert_finite(layer, torch.ones_like(below.pose), below.activation)


@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
def test_em_without_any_active_child(pose: PoseShape, grid: Grid, size: float) -> None:
    layer = make_float_layer("em", pose, grid)
    below = make_float_below(pose, grid)
    assert below.activation is not None
    result = assert_finite(layer, size * below.pose, torch.zeros_like(below.activation))
    # No mass, hence no cost: what is left of the logistic function is its middle, as beta_activate starts at 0.
    torch.testing.assert_close(result.activation, torch.full_like(result.pose[:, 0, 0], 0.5))


def test_em_survives_parents_that_are_not_present() -> None:
    pose = PoseShape(4, 1)
    layer = make_float_layer("em", pose, CONVOLUTIONAL)
    torch.nn.init.constant_(layer.routing.get_parameter("beta_activate"), -1e9)
    below = make_float_below(pose, CONVOLUTIONAL)
    assert below.activation is not None
    result = assert_finite(layer, below.pose, below.activation)
    assert result.activation is not None
    assert (result.activation == 0).all(), "activations did not underflow: the example proves nothing"


def relative_error(value: Tensor, expected: Tensor) -> float:
    return ((value.float() - expected).square().mean() / expected.square().mean()).sqrt().item()


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
def test_bfloat16_autocast_stays_close_to_float32(name: str, pose: PoseShape, grid: Grid) -> None:
    layer = make_float_layer(name, pose, grid)
    below = make_float_below(pose, grid)
    # In a network, autocast hands on poses and activations of convolutions in bfloat16.
    assert below.activation is not None
    below = Capsules(below.pose.bfloat16().requires_grad_(), below.activation.bfloat16().requires_grad_())
    assert below.activation is not None
    exact_below = Capsules(below.pose.float(), below.activation.float())
    exact = route(layer, exact_below, ITERATIONS)
    with torch.autocast("cpu", torch.bfloat16):
        result = route(layer, below, ITERATIONS)
    assert relative_error(result.pose, exact.pose) < 0.02
    if exact.activation is not None:
        assert result.activation is not None
        # All activations are near 0.5; what tells them apart must survive.
        assert relative_error(result.activation - 0.5, exact.activation - 0.5) < 0.02
    expected = differentiate(layer, exact_below, exact)
    for key, gradient in differentiate(layer, below, result).items():
        assert gradient.isfinite().all(), key
        assert relative_error(gradient, expected[key]) < 0.05, key


def test_votes_are_mapped_in_float32() -> None:
    torch.manual_seed(0)
    children, weight = torch.randn(20, 4, 1, 5).bfloat16(), torch.randn(20, 3, 4, 4)
    other = torch.rand(20, 5).bfloat16()

    def average(votes: Tensor, other: Tensor) -> tuple[Tensor, ...]:
        return ((votes * other[:, None, None, None]).sum(0),)

    with torch.autocast("cpu", torch.bfloat16):
        (result,) = map_votes(average, children, weight, other)
    (expected,) = map_votes(average, children.float(), weight, other.float())
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
