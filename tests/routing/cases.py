"""What the tests of the routings are run on: every routing, both poses, both kinds of layer, at tiny sizes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing import ROUTINGS
from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions
from overlaycaps.routing.schedule import route_sequentially

# Rows that other packages add are theirs to test.
NAMES = [name for name, row in ROUTINGS.items() if row.target.startswith("overlaycaps.")]
CLASSES: dict[str, type[Routing]] = {name: ROUTINGS[name].load() for name in NAMES}
ITERATIVE = [name for name in NAMES if CLASSES[name].is_iterative]

EVERY_ROUTING = pytest.mark.parametrize("name", NAMES)
EVERY_POSE = pytest.mark.parametrize("pose", [PoseShape(4, 1), PoseShape(2, 2)], ids=["vector", "matrix"])

NUM_IN, NUM_OUT = 2, 3


@dataclass(frozen=True)
class Grid:
    """Size of the layer below, kernel and step."""

    size_px: int
    kernel_px: int
    stride_px: int = 1


CONVOLUTIONAL, FULLY_CONNECTED, STRIDED = Grid(3, 2), Grid(2, 2), Grid(4, 2, 2)
EVERY_GRID = pytest.mark.parametrize("grid", [CONVOLUTIONAL, FULLY_CONNECTED], ids=["convolutional", "connected"])


def make_routing(
    name: str, pose: PoseShape, num_children: int, num_parents: int, options: RoutingOptions | None = None
) -> Routing:
    """A routing in double precision, whose parameters all differ from their initial values and from each other."""
    routing = CLASSES[name](pose, num_children, num_parents, options or RoutingOptions()).double()
    for key, parameter in routing.named_parameters():
        # The inverse temperature of `em` is near 0.001; activations should differ all the same.
        torch.nn.init.normal_(parameter, std=100.0 if key == "beta_activate" else 1.0)
    return routing


def make_layer(
    name: str, pose: PoseShape, grid: Grid = CONVOLUTIONAL, options: RoutingOptions | None = None, seed: int = 0
) -> CapsuleLayer:
    """A layer of ``NUM_OUT`` capsules over ``NUM_IN``, in double precision."""
    torch.manual_seed(seed)
    layer = CapsuleLayer(
        NUM_IN,
        NUM_OUT,
        pose,
        grid.kernel_px,
        lambda pose, num_children, num_parents: make_routing(name, pose, num_children, num_parents, options),
        grid.stride_px,
    ).double()
    # Larger than at the start of training, so that coefficients differ and saturate nowhere.
    torch.nn.init.normal_(layer.weight, std=0.7)
    return layer


def make_below(pose: PoseShape, grid: Grid = CONVOLUTIONAL, batch_size: int = 2) -> Capsules:
    """Capsules with activations, in double precision; made after the layer, whose seed they follow."""
    place = (batch_size, grid.size_px, grid.size_px)
    poses = torch.randn(NUM_IN, pose.rows, pose.columns, *place, dtype=torch.double)
    return Capsules(poses, 0.1 + 0.8 * torch.rand(NUM_IN, *place, dtype=torch.double))


def route(layer: CapsuleLayer, below: Capsules, iterations: int) -> Capsules:
    """All passes of one layer."""
    return route_sequentially([layer], below, iterations)
