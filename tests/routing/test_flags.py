"""What a routing says of itself is how it behaves."""

from __future__ import annotations

import pytest
import torch

from overlaycaps.routing.base import Capsules, PoseShape
from tests.routing.cases import EVERY_GRID, EVERY_POSE, EVERY_ROUTING, Grid, make_below, make_layer, route


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
def test_further_passes_change_something_where_a_routing_is_iterative(name: str, pose: PoseShape, grid: Grid) -> None:
    layer = make_layer(name, pose, grid)
    votes = layer.vote(make_below(pose, grid))
    first = layer.routing.first(votes)
    again = layer.routing.again(votes, first, 2)
    if layer.routing.is_iterative:
        # At every position: in none may the first pass be all there is.
        assert (again.pose - first.pose).abs().amax((0, 1, 2)).min() > 1e-3
    else:
        torch.testing.assert_close(again.pose, first.pose, rtol=0, atol=0)
        assert first.activation is None


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
def test_activations_matter_where_a_routing_uses_them(name: str, pose: PoseShape, grid: Grid) -> None:
    layer = make_layer(name, pose, grid)
    below = make_below(pose, grid)
    assert below.activation is not None
    for iterations in (1, 2):
        active, bare = (route(layer, Capsules(below.pose, a), iterations) for a in (below.activation, None))
        if layer.routing.uses_activations:
            assert (active.pose - bare.pose).abs().amax((0, 1, 2)).min() > 1e-3
            assert active.activation is not None, "the layer above needs activations too"
            assert active.activation.shape == (len(active.pose), *active.pose.shape[3:])
            assert ((active.activation >= 0) & (active.activation <= 1)).all()
        else:
            torch.testing.assert_close(active.pose, bare.pose, rtol=0, atol=0)


@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_attention_in_one_pass_is_uniform_in_any(pose: PoseShape, grid: Grid, iterations: int) -> None:
    attention, uniform = (make_layer(name, pose, grid) for name in ("attention", "uniform"))
    uniform.load_state_dict(attention.state_dict())
    below = make_below(pose, grid)
    expected = route(attention, below, 1).pose
    torch.testing.assert_close(route(uniform, below, iterations).pose, expected, rtol=0, atol=0)
    assert (route(attention, below, 2).pose - expected).abs().max() > 1e-3
