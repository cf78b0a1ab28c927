"""Every routing against its publication's procedure, written out in ``references``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from overlaycaps.routing.base import Capsules, PoseShape, RoutingOptions
from tests.routing import references
from tests.routing.cases import (
    CONVOLUTIONAL,
    EVERY_GRID,
    EVERY_POSE,
    EVERY_ROUTING,
    ITERATIVE,
    NAMES,
    STRIDED,
    Grid,
    make_below,
    make_layer,
    route,
)

OPTIONS = [RoutingOptions(scale, norm) for scale in (True, False) for norm in (True, False)]
USES = {"attention": ("scale_agreement", "layer_norm"), "uniform": ("layer_norm",)}
"""The options that a routing knows; the others know none."""


def assert_equals_reference(
    name: str, pose: PoseShape, grid: Grid, iterations: int, options: RoutingOptions | None = None
) -> None:
    layer = make_layer(name, pose, grid, options)
    below = make_below(pose, grid)
    result = route(layer, below, iterations)
    expected = references.route_layer(
        name, below, layer.weight, grid.kernel_px, grid.stride_px, layer.routing, iterations
    )
    torch.testing.assert_close(result.pose, expected.pose, rtol=0, atol=1e-10)
    if expected.activation is None:
        assert result.activation is None
    else:
        torch.testing.assert_close(result.activation, expected.activation, rtol=0, atol=1e-10)


def test_every_routing_has_a_reference() -> None:
    missing = set(NAMES) - set(references.REFERENCES)
    assert not missing, f"routings without a literal reference in tests/routing/references.py: {sorted(missing)}"
    unknown = set(references.REFERENCES) - set(NAMES)
    assert not unknown, f"references to routings that are not in the table: {sorted(unknown)}"


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_routing_equals_the_published_procedure(name: str, pose: PoseShape, grid: Grid, iterations: int) -> None:
    assert_equals_reference(name, pose, grid, iterations)


@EVERY_ROUTING
@EVERY_POSE
def test_routing_equals_the_published_procedure_with_strides(name: str, pose: PoseShape) -> None:
    assert_equals_reference(name, pose, STRIDED, iterations=2)


@pytest.mark.parametrize("name", USES)
@EVERY_POSE
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_change_what_they_state(name: str, pose: PoseShape, options: RoutingOptions) -> None:
    assert_equals_reference(name, pose, CONVOLUTIONAL, iterations=3, options=options)


@EVERY_ROUTING
@EVERY_POSE
@pytest.mark.parametrize("option", ["scale_agreement", "layer_norm"])
def test_an_option_matters_to_the_routings_that_know_it_alone(name: str, pose: PoseShape, option: str) -> None:
    def route_with(options: RoutingOptions) -> tuple[Tensor, set[str]]:
        layer = make_layer(name, pose, options=options)
        torch.manual_seed(1)
        return route(layer, make_below(pose), 3).pose, {key for key, _ in layer.routing.named_parameters()}

    on, names_on = route_with(RoutingOptions())
    off, names_off = route_with(replace(RoutingOptions(), **{option: False}))
    if option in USES.get(name, ()):
        assert (on - off).abs().max() > 1e-3
    else:
        torch.testing.assert_close(on, off, rtol=0, atol=0)
    learns_norm = option == "layer_norm" and option in USES.get(name, ())
    assert names_on - names_off == ({"norm.weight", "norm.bias"} if learns_norm else set())


@EVERY_ROUTING
def test_every_learned_number_matters(name: str) -> None:
    # Otherwise equality with the reference would not show a parameter that is read at the wrong place.
    pose = PoseShape(2, 2)
    layer = make_layer(name, pose)
    result = route(layer, make_below(pose), 2)
    read = result.pose.sin().sum() + (0 if result.activation is None else result.activation.sin().sum())
    for key, gradient in zip(
        dict(layer.named_parameters()), torch.autograd.grad(read, list(layer.parameters())), strict=True
    ):
        assert (gradient != 0).all(), key


@pytest.mark.parametrize("name", ITERATIVE)
@EVERY_POSE
def test_examples_are_routed_differently_in_every_pass(name: str, pose: PoseShape) -> None:
    layer = make_layer(name, pose)
    below = make_below(pose)
    poses = [route(layer, below, iterations).pose for iterations in (1, 2, 3)]
    assert min((poses[0] - poses[1]).abs().max(), (poses[1] - poses[2]).abs().max()) > 1e-3


def test_children_without_activations_are_fully_active() -> None:
    pose = PoseShape(4, 1)
    layer = make_layer("em", pose)
    poses = make_below(pose).pose
    ones = torch.ones_like(poses[:, 0, 0])
    bare, full = route(layer, Capsules(poses), 3), route(layer, Capsules(poses, ones), 3)
    torch.testing.assert_close(bare.pose, full.pose, rtol=0, atol=0)
    torch.testing.assert_close(bare.activation, full.activation, rtol=0, atol=0)
