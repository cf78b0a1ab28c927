"""Over which axis coefficients are normalised, read from what each routing returns.

Child i gets a number of its own in every vote: V_ij = (numbers that differ, e_i). The sum over i of coefficient x vote
then shows the coefficients themselves, in its last I numbers.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions, Votes
from tests.routing.cases import CLASSES, EVERY_GRID, EVERY_ROUTING, ITERATIVE, NUM_IN, NUM_OUT, Grid, make_routing
from tests.routing.references import REFERENCES

EVERY_WIDTH = pytest.mark.parametrize("columns", [1, 2], ids=["vector", "matrix"])
EVERY_PASS = pytest.mark.parametrize("iterations", [1, 2, 3])

EQUAL_AT_FIRST = [name for name in REFERENCES if name != "self-attention"]
"""Routings that know nothing of the parents in the first pass."""

# Numbers of a vote that differ between parents.
_PLAIN_ROWS = 2
# How much of its own number a child puts into its votes. Small, like the votes for self-attention, whose squashing
# would otherwise leave too little of the length to tell the sums from.
_OWN = 0.1


def read_coefficients(
    name: str, columns: int, grid: Grid, iterations: int, *, with_priors: bool = False
) -> tuple[Tensor, Routing]:
    """Return coefficients (I, J, B, H, W), times the child's activation where there is one, and the routing."""
    torch.manual_seed(0)
    num_children = NUM_IN * grid.kernel_px**2
    pose = PoseShape(_PLAIN_ROWS + num_children, columns)
    routing = make_routing(name, pose, num_children, NUM_OUT, RoutingOptions(layer_norm=False))
    for key, parameter in routing.named_parameters():
        if key == "log_prior" and not with_priors:
            torch.nn.init.zeros_(parameter)
    poses = torch.randn(NUM_IN, _PLAIN_ROWS + 1, columns, 2, grid.size_px, grid.size_px, dtype=torch.double)
    poses[:, -1] = 1
    weight = torch.zeros(num_children, NUM_OUT, pose.rows, _PLAIN_ROWS + 1, dtype=torch.double)
    size = 0.6 if name == "self-attention" else 2.0
    weight[:, :, :_PLAIN_ROWS, :_PLAIN_ROWS] = size * torch.randn(num_children, NUM_OUT, _PLAIN_ROWS, _PLAIN_ROWS)
    for child in range(num_children):
        weight[child, :, _PLAIN_ROWS + child, -1] = _OWN
    votes = Votes(Capsules(poses), weight, grid.kernel_px)
    capsules = routing.first(votes)
    for number in range(2, iterations + 1):
        capsules = routing.again(votes, capsules, number)
    assert name in REFERENCES, f"{name} needs a row in tests/routing/references.py that tells how to undo its output"
    sums = REFERENCES[name].recover(routing, capsules, iterations)
    return sums[:, _PLAIN_ROWS:, 0].transpose(0, 1) / _OWN, routing


@EVERY_ROUTING
@EVERY_WIDTH
@EVERY_GRID
@EVERY_PASS
def test_each_child_gives_itself_once(name: str, columns: int, grid: Grid, iterations: int) -> None:
    coefficients, _ = read_coefficients(name, columns, grid, iterations)
    assert coefficients.min() >= 0
    over_parents, over_children = coefficients.sum(1), coefficients.sum(0)
    torch.testing.assert_close(over_parents, torch.ones_like(over_parents), rtol=0, atol=1e-8)
    assert (over_children - 1).abs().max() > 1e-3, "also normalised over the children: the example proves nothing"


@pytest.mark.parametrize("name", EQUAL_AT_FIRST)
@EVERY_WIDTH
@EVERY_GRID
def test_first_pass_has_equal_coefficients(name: str, columns: int, grid: Grid) -> None:
    coefficients, _ = read_coefficients(name, columns, grid, iterations=1)
    torch.testing.assert_close(coefficients, torch.full_like(coefficients, 1 / NUM_OUT), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in CLASSES if name in ITERATIVE or name not in EQUAL_AT_FIRST])
@EVERY_WIDTH
@pytest.mark.parametrize("iterations", [2, 3])
def test_agreement_makes_coefficients_differ(name: str, columns: int, iterations: int) -> None:
    coefficients, _ = read_coefficients(name, columns, Grid(3, 2), iterations)
    assert (coefficients - 1 / NUM_OUT).abs().max() > 0.05


@EVERY_WIDTH
def test_uniform_coefficients_stay_equal_in_every_pass(columns: int) -> None:
    coefficients, _ = read_coefficients("uniform", columns, Grid(3, 2), iterations=3)
    torch.testing.assert_close(coefficients, torch.full_like(coefficients, 1 / NUM_OUT), rtol=0, atol=1e-12)


def test_log_priors_are_added_after_the_softmax() -> None:
    coefficients, _ = read_coefficients("self-attention", 1, Grid(3, 2), 1)
    shifted, routing = read_coefficients("self-attention", 1, Grid(3, 2), 1, with_priors=True)
    prior = routing.get_parameter("log_prior")
    torch.testing.assert_close(shifted, coefficients + prior[:, :, None, None, None], rtol=0, atol=1e-8)
    assert (shifted.sum(1) - 1).abs().max() > 0.1
