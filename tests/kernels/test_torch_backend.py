"""The routed passes: exact, streamed, and differentiable."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from overlaycaps.kernels import attention_pass, gather_children, torch_backend, uniform_pass
from tests.kernels.counting import note_sizes

SCALE = 0.5


def make_inputs(columns: int, positions: int = 5, dtype: torch.dtype = torch.double) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    children = torch.randn(6, 3, columns, positions, dtype=dtype, requires_grad=True)
    weight = torch.randn(6, 4, 3, 3, dtype=dtype, requires_grad=True)
    parents = torch.randn(4, 3, columns, positions, dtype=dtype, requires_grad=True)
    return children, weight, parents


def attend_with_all_votes(children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
    votes = torch.einsum("ijqr,irct->ijqct", weight, children)
    agreement = scale * torch.einsum("ijqct,jqct->ijt", votes, parents)
    return torch.einsum("ijt,ijqct->jqct", agreement.softmax(1), votes)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("votes_in_flight", [1, 150, 2**20], ids=["one child", "some", "all"])
def test_attention_pass_is_exact_forward_and_backward(
    columns: int, votes_in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "_MAX_VOTES_IN_FLIGHT", votes_in_flight)
    inputs = make_inputs(columns)
    sums = attention_pass(*inputs, SCALE)
    expected = attend_with_all_votes(*inputs, SCALE)
    torch.testing.assert_close(sums, expected, rtol=0, atol=1e-12)
    direction = torch.randn_like(sums)
    for own, literal in zip(
        torch.autograd.grad(sums, inputs, direction), torch.autograd.grad(expected, inputs, direction), strict=True
    ):
        torch.testing.assert_close(own, literal, rtol=0, atol=1e-11)


@pytest.mark.parametrize("columns", [1, 2])
def test_attention_pass_passes_gradcheck(columns: int) -> None:
    assert torch.autograd.gradcheck(lambda c, w, p: attention_pass(c, w, p, SCALE), make_inputs(columns, positions=2))


def test_attention_pass_never_holds_all_votes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = note_sizes(monkeypatch, 200)
    inputs = make_inputs(columns=1)
    attention_pass(*inputs, SCALE).sum().backward()
    assert sum(sizes) == 2 * 6 * 4 * 3 * 5  # every vote, once forward and once backward
    assert max(sizes) <= 200


def test_coefficients_sum_to_one_over_the_parents() -> None:
    # With all votes equal to 1, the sum of the routed sums over the parents is the number of children.
    children = torch.ones(6, 1, 1, 3, dtype=torch.double)
    weight = torch.ones(6, 4, 1, 1, dtype=torch.double)
    parents = torch.randn(4, 1, 1, 3, dtype=torch.double)
    sums = attention_pass(children, weight, parents, 1.0)
    torch.testing.assert_close(sums.sum(0), torch.full((1, 1, 3), 6.0, dtype=torch.double))
    assert (sums[0] - sums[1]).abs().max() > 0.01


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kernel_px", [1, 2, 4], ids=["1x1", "2x2", "whole input"])
def test_uniform_pass_is_attention_to_parents_at_zero(columns: int, kernel_px: int) -> None:
    torch.manual_seed(0)
    poses = torch.randn(3, 2, columns, 2, 4, 4, dtype=torch.double)
    weight = torch.randn(3 * kernel_px**2, 5, 2, 2, dtype=torch.double)
    children = gather_children(poses, kernel_px)
    zero = torch.zeros(5, 2, columns, children.shape[-1], dtype=torch.double)
    expected = attend_with_all_votes(children, weight, zero, SCALE)
    sums = uniform_pass(poses, weight / 5, kernel_px)
    assert sums.shape[3:] == (2, 5 - kernel_px, 5 - kernel_px)
    torch.testing.assert_close(sums.flatten(3), expected, rtol=0, atol=1e-12)


def test_attention_pass_under_bf16_stays_close_to_float32() -> None:
    inputs = make_inputs(1, dtype=torch.float32)
    expected = attention_pass(*inputs, SCALE)
    with torch.autocast("cpu", torch.bfloat16):
        children, weight, parents = inputs
        sums = attention_pass(children.bfloat16(), weight, parents, SCALE)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(sums, expected, rtol=0.05, atol=0.05)
