"""The torch backend: exact in double precision, streamed, and differentiable."""

from __future__ import annotations

import pytest
import torch

from overlaycaps.kernels import gather_children, torch_backend, uniform_pass
from overlaycaps.kernels.torch_backend import attention_pass
from tests.kernels.counting import note_sizes
from tests.kernels.problems import SCALE, Problem, attend_with_all_votes, differentiate


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("votes_in_flight", [1, 150, 2**20], ids=["one child", "some", "all"])
def test_attention_pass_is_exact_forward_and_backward(
    columns: int, votes_in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "_MAX_VOTES_IN_FLIGHT", votes_in_flight)
    problem = Problem(columns=columns)
    operands = problem.make()
    sums = attention_pass(*operands, SCALE, problem.kernel_px)
    expected = attend_with_all_votes(*operands, problem)
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-12)
    for own, literal in zip(differentiate(sums, operands), differentiate(expected, operands), strict=True):
        torch.testing.assert_close(own, literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("columns", [1, 2])
def test_attention_pass_passes_gradcheck(columns: int) -> None:
    problem = Problem(capsules=1, rows=2, parent_rows=2, columns=columns, batch=2, height=3, width=3, parents=3)
    assert torch.autograd.gradcheck(lambda p, w, q: attention_pass(p, w, q, SCALE, 2), problem.make())


def test_attention_pass_never_holds_all_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = note_sizes(monkeypatch, 700)
    attention_pass(*Problem().make(), SCALE, 2).sum().backward()
    assert sum(sizes) == 2 * 8 * 4 * 3 * 45  # every vote, once forward and once backward
    assert max(sizes) <= 700


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kernel_px", [1, 2, 4], ids=["1x1", "2x2", "whole input"])
def test_uniform_pass_is_attention_to_parents_at_zero(columns: int, kernel_px: int) -> None:
    torch.manual_seed(0)
    poses = torch.randn(3, 2, columns, 2, 4, 4, dtype=torch.double)
    weight = torch.randn(3 * kernel_px**2, 5, 2, 2, dtype=torch.double)
    side = 5 - kernel_px
    zero = torch.zeros(5, 2, columns, 2, side, side, dtype=torch.double)
    expected = attend_with_all_votes(poses, weight, zero, Problem(kernel_px=kernel_px))
    sums = uniform_pass(poses, weight / 5, kernel_px)
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-12)


def test_children_are_ordered_by_capsule_then_row_then_column() -> None:
    poses = torch.arange(2 * 3 * 3.0).view(2, 1, 1, 1, 3, 3)
    children = gather_children(poses, 2)
    assert children[:, 0, 0, 0].tolist() == [0, 1, 3, 4, 9, 10, 12, 13]
    assert children[0, 0, 0].tolist() == [0, 1, 3, 4]
