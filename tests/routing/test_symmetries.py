"""Children have no order, parents have no rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing.base import Capsules, PoseShape
from tests.routing.cases import (
    CONVOLUTIONAL,
    EVERY_GRID,
    EVERY_POSE,
    EVERY_ROUTING,
    FULLY_CONNECTED,
    NUM_IN,
    NUM_OUT,
    Grid,
    make_below,
    make_layer,
    route,
)

ITERATIONS = 3


def permute(layer: CapsuleLayer, axis: int, order: Tensor) -> None:
    """Reorder what the layer has for each child (axis 0) or parent (axis 1): matrices, log priors, betas."""
    with torch.no_grad():
        layer.weight.copy_(layer.weight.index_select(axis, order))
        for key, parameter in layer.routing.named_parameters():
            if key == "log_prior":
                parameter.copy_(parameter.index_select(axis, order))
            elif key.startswith("beta_") and axis == 1:
                parameter.copy_(parameter[order])


def assert_same(capsules: Capsules, expected: Capsules) -> None:
    torch.testing.assert_close(capsules.pose, expected.pose, rtol=0, atol=1e-10)
    torch.testing.assert_close(capsules.activation, expected.activation, rtol=0, atol=1e-10)


@EVERY_ROUTING
@EVERY_POSE
def test_order_of_all_children_does_not_matter(name: str, pose: PoseShape) -> None:
    layer, below = make_layer(name, pose, FULLY_CONNECTED), make_below(pose, FULLY_CONNECTED)
    before = route(layer, below, ITERATIONS)
    order = torch.randperm(NUM_IN * FULLY_CONNECTED.kernel_px**2)
    # Capsule, row and column of a child, together its index.
    children = below.pose.permute(0, 4, 5, 1, 2, 3).flatten(0, 2)[order]
    poses = children.unflatten(0, (NUM_IN, 2, 2)).permute(0, 3, 4, 5, 1, 2)
    assert below.activation is not None
    active = below.activation.permute(0, 2, 3, 1).flatten(0, 2)[order].unflatten(0, (NUM_IN, 2, 2)).permute(0, 3, 1, 2)
    moved = route(layer, Capsules(poses, active), ITERATIONS)
    assert (moved.pose - before.pose).abs().max() > 1e-3, "the order of the poses alone must matter"
    permute(layer, 0, order)
    assert_same(route(layer, Capsules(poses, active), ITERATIONS), before)


@EVERY_ROUTING
@EVERY_POSE
def test_order_of_the_capsules_below_does_not_matter(name: str, pose: PoseShape) -> None:
    layer, below = make_layer(name, pose, CONVOLUTIONAL), make_below(pose, CONVOLUTIONAL)
    before = route(layer, below, ITERATIONS)
    order = torch.arange(NUM_IN * CONVOLUTIONAL.kernel_px**2).unflatten(0, (NUM_IN, -1)).flip(0).flatten()
    permute(layer, 0, order)
    assert below.activation is not None
    assert_same(route(layer, Capsules(below.pose.flip(0), below.activation.flip(0)), ITERATIONS), before)


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
def test_parents_permute_with_their_matrices(name: str, pose: PoseShape, grid: Grid) -> None:
    layer, below = make_layer(name, pose, grid), make_below(pose, grid)
    before = route(layer, below, ITERATIONS)
    order = torch.tensor([2, 0, 1])
    assert len(order) == NUM_OUT
    permute(layer, 1, order)
    active = None if before.activation is None else before.activation[order]
    assert_same(route(layer, below, ITERATIONS), Capsules(before.pose[order], active))


@EVERY_ROUTING
@pytest.mark.parametrize("iterations", [1, 3])
def test_samples_and_places_are_routed_apart(name: str, iterations: int) -> None:
    pose = PoseShape(2, 2)
    layer, below = make_layer(name, pose), make_below(pose)
    before = route(layer, below, iterations).pose
    below.pose[:, :, :, 1, 0, 0] += 1
    changed = (route(layer, below, iterations).pose != before).flatten(0, 2).any(0)
    assert changed.nonzero().tolist() == [[1, 0, 0]]
