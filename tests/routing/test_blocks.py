"""Votes made a block at a time: the same results and gradients, and never more votes at once than allowed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overlaycaps.kernels import map_votes, torch_backend
from overlaycaps.routing.base import Capsules, PoseShape
from tests.kernels.counting import note_sizes
from tests.routing.cases import EVERY_GRID, EVERY_POSE, EVERY_ROUTING, Grid, make_below, make_layer, route

I, J, Q, C, T = 4, 3, 2, 2, 7  # noqa: E741 - the letters of the kernels
POSITION = I * J * Q * C
"""Votes, in numbers, of one position."""


@EVERY_ROUTING
@EVERY_POSE
@EVERY_GRID
@pytest.mark.parametrize("allowed", [1, 200], ids=["one at a time", "some at a time"])
def test_blocks_change_neither_result_nor_gradient(
    name: str, pose: PoseShape, grid: Grid, allowed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make_layer(name, pose, grid)
    below = make_below(pose, grid)
    inputs = [below.pose.requires_grad_(), *layer.parameters()]
    if layer.routing.uses_activations:
        assert below.activation is not None
        inputs.append(below.activation.requires_grad_())

    def run() -> list[Tensor]:
        result = route(layer, below, 3)
        read = result.pose.sin().sum() + (0 if result.activation is None else result.activation.sin().sum())
        return [result.pose, *torch.autograd.grad(read, inputs)]

    whole = run()
    monkeypatch.setattr(torch_backend, "_MAX_VOTES_IN_FLIGHT", allowed)
    for own, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(own, expected, rtol=0, atol=1e-10)


def make_inputs() -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(I, 3, C, T), (I, J, Q, 3), (I, T)]
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


def mix(votes: Tensor, other: Tensor) -> tuple[Tensor, ...]:
    """Results of two shapes, to which all votes of a position contribute."""
    share = torch.softmax((votes * other[:, None, None, None]).sum((2, 3)), 1)
    return (share[:, :, None, None] * votes).sum(0), share.square().sum((0, 1))


@pytest.mark.parametrize("allowed", [1, POSITION, 3 * POSITION + 1, T * POSITION], ids=["1", "1 place", "3", "all"])
def test_blocks_give_what_all_votes_give(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs()
    children, weight, other = inputs
    expected = mix(torch.einsum("ijqr,irct->ijqct", weight, children), other)
    directions = [torch.randn_like(result) for result in expected]
    gradients = torch.autograd.grad(expected, inputs, directions)
    monkeypatch.setattr(torch_backend, "_MAX_VOTES_IN_FLIGHT", allowed)
    results = map_votes(mix, children, weight, other)
    assert len(results) == len(expected)
    for own, literal in zip(
        [*results, *torch.autograd.grad(results, inputs, directions)], [*expected, *gradients], strict=True
    ):
        torch.testing.assert_close(own, literal, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("allowed", "largest", "times_made"),
    [
        (1, POSITION, 2),
        (2 * POSITION + 1, 2 * POSITION, 2),
        (T * POSITION - 1, (T - 1) * POSITION, 2),
        (2**20, None, 1),
    ],
    ids=["less than a position", "two positions", "one short of all", "all"],
)
def test_never_more_votes_at_once_than_allowed(
    allowed: int, largest: int | None, times_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = note_sizes(monkeypatch, allowed)
    children, weight, other = make_inputs()
    torch.autograd.backward([result.sum() for result in map_votes(mix, children, weight, other)])
    assert max(sizes) == (largest or T * POSITION)
    # Votes that were let go are made once more for the backward pass.
    assert sum(sizes) == times_made * T * POSITION


def test_blocks_are_let_go_before_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    note_sizes(monkeypatch, POSITION)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    children, weight, other = make_inputs()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        map_votes(mix, children, weight, other)
    assert POSITION not in saved, "the votes of a block were kept"


@EVERY_POSE
@EVERY_GRID
def test_em_keeps_to_what_is_allowed(pose: PoseShape, grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, below = make_layer("em", pose, grid), make_below(pose, grid)
    sizes = note_sizes(monkeypatch, allowed=200)
    route(layer, Capsules(below.pose.requires_grad_(), below.activation), 2).pose.sum().backward()
    assert sizes
    assert max(sizes) <= 200
