"""The gradient of every routed layer against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overlaycaps.routing.base import Capsules, PoseShape
from tests.routing.cases import EVERY_GRID, EVERY_POSE, EVERY_ROUTING, Grid, make_below, make_layer, route


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("iterations", [1, 2])
def test_gradients_of_a_layer(name: str, pose: PoseShape, grid: Grid, iterations: int) -> None:
    """With respect to poses and, where the routing knows them, activations below, matrices and learned numbers."""
    layer = make_layer(name, pose, grid)
    below = make_below(pose, grid, batch_size=1)
    inputs = [below.pose, *([below.activation] if layer.routing.uses_activations else []), *layer.parameters()]

    def read(poses: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        # The parameters are checked in place: gradcheck perturbs the very tensors that the layer holds.
        activation = others[0] if layer.routing.uses_activations else None
        result = route(layer, Capsules(poses, activation), iterations)
        # An activation hangs on an inverse temperature near 0.001; unscaled, any gradient of it would pass.
        return (result.pose,) if result.activation is None else (result.pose, 100 * result.activation)

    assert all(tensor is not None for tensor in inputs)
    assert torch.autograd.gradcheck(read, [tensor.requires_grad_() for tensor in inputs if tensor is not None])
