"""The routed pass, by every backend: exact forward and backward, whatever the sizes, layouts and threads."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from overlaycaps.kernels import attention_pass, choose_backend, native_backend
from overlaycaps.kernels.backends import BACKENDS
from tests.kernels.problems import LAYOUTS, PROBLEMS, SCALE, Problem, attend_with_all_votes, differentiate

Backend = Callable[[Tensor, Tensor, Tensor, float, int, int], Tensor]

native_only = pytest.mark.skipif(choose_backend("cpu").backend != "native", reason=str(choose_backend("cpu").note))
EVERY_BACKEND = pytest.mark.parametrize("name", [pytest.param("native", marks=native_only), "torch"])
EVERY_PROBLEM = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def attend(name: str, problem: Problem, operands: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Sums, then gradients of poses, weight and parents."""
    sums = BACKENDS[name](*operands, SCALE, problem.kernel_px, problem.stride_px)
    return sums, *differentiate(sums, operands)


def attend_exactly(problem: Problem, operands: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    poses, weight, parents = (operand.detach().double().requires_grad_() for operand in operands)
    sums = attend_with_all_votes(poses, weight, parents, problem)
    return sums, *differentiate(sums, (poses, weight, parents))


def assert_equal_to_rounding(values: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for value, exact in zip(values, expected, strict=True):
        assert value.dtype == torch.float32
        assert value.shape == exact.shape
        size = exact.abs().max().item()
        torch.testing.assert_close(value.double(), exact, rtol=0, atol=2e-6 * size + 1e-7)


@EVERY_BACKEND
@EVERY_PROBLEM
def test_a_pass_is_exact_to_float32_rounding(name: str, problem: Problem) -> None:
    operands = problem.make(torch.float32)
    assert_equal_to_rounding(attend(name, problem, operands), attend_exactly(problem, operands))


@EVERY_BACKEND
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("columns", [1, 3])
def test_operands_may_lie_in_memory_in_any_order(name: str, layout: str, columns: int) -> None:
    problem = Problem(rows=16, parent_rows=16, columns=columns, batch=19)
    operands = problem.make(torch.float32, layout)
    assert_equal_to_rounding(attend(name, problem, operands), attend_exactly(problem, operands))


@EVERY_BACKEND
def test_gradients_may_be_spread_out_views(name: str) -> None:
    problem = Problem()
    operands = problem.make(torch.float32)
    sums = BACKENDS[name](*operands, SCALE, 2, 1)
    # The gradient of a sum has stride 0 everywhere.
    own = torch.autograd.grad(sums.sum(), operands)
    exact = problem.make()
    expected = torch.autograd.grad(attend_with_all_votes(*exact, problem).sum(), exact)
    for value, wanted in zip(own, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-5)


@EVERY_BACKEND
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_operands_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    problem = Problem(capsules=8, rows=4, parent_rows=4)
    operands = problem.make(dtype)
    raised = tuple(operand.detach().float().requires_grad_() for operand in operands)
    with torch.autocast("cpu", torch.bfloat16):
        own = attend(name, problem, operands)
    expected = attend(name, problem, (raised[0], raised[1], raised[2]))
    torch.testing.assert_close(own[0], expected[0], rtol=0, atol=0)
    for value, wanted in zip(own[1:], expected[1:], strict=True):
        torch.testing.assert_close(value, wanted.to(dtype), rtol=0, atol=0)


@EVERY_BACKEND
@EVERY_PROBLEM
def test_the_same_threads_give_the_same_bytes(name: str, problem: Problem, threads: Callable[[int], None]) -> None:
    operands = problem.make(torch.float32)
    threads(2)
    for first, second in zip(attend(name, problem, operands), attend(name, problem, operands), strict=True):
        assert first.equal(second)


@EVERY_BACKEND
@pytest.mark.parametrize("number", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("capsules", [1, 3])
def test_any_number_of_threads_gives_the_same_result(
    name: str, number: int, capsules: int, threads: Callable[[int], None]
) -> None:
    # With more threads than capsules below, the batch is divided as well.
    problem = Problem(capsules=capsules, batch=70, rows=4, parent_rows=4)
    operands = problem.make(torch.float32)
    threads(number)
    assert_equal_to_rounding(attend(name, problem, operands), attend_exactly(problem, operands))


@native_only
def test_threads_of_its_own_give_the_same_bytes(
    threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(batch=40)
    operands = problem.make(torch.float32)
    threads(2)
    shared = attend("native", problem, operands)
    monkeypatch.setattr(native_backend, "_find_omp_parallel", lambda: ctypes.c_void_p(None))
    for own, other in zip(attend("native", problem, operands), shared, strict=True):
        assert own.equal(other)


@EVERY_BACKEND
@pytest.mark.parametrize("where", [0, 1, 2], ids=["poses", "weight", "parents"])
def test_a_number_that_is_none_is_not_hidden(name: str, where: int) -> None:
    problem = Problem()
    operands = problem.make(torch.float32)
    with torch.no_grad():
        operands[where][(0,) * operands[where].dim()] = torch.nan
    sums = BACKENDS[name](*operands, SCALE, 2, 1)
    assert sums.isnan().any()
    if where != 1:
        # Samples do not mix: the first alone is lost.
        assert sums[:, :, :, 1:].isfinite().all()


@EVERY_BACKEND
@pytest.mark.parametrize("size", [1e-30, 1e3, 1e15])
def test_agreements_of_any_size_are_finite(name: str, size: float) -> None:
    problem = Problem(parents=10)
    poses, weight, parents = problem.make(torch.float32)
    operands = ((poses.detach() * size).requires_grad_(), weight, parents)
    for value in attend(name, problem, operands):
        assert value.isfinite().all()


@EVERY_BACKEND
def test_coefficients_sum_to_one_over_the_parents(name: str) -> None:
    # With all votes equal to 1, the routed sums add up to the number of children.
    poses, weight, parents = Problem(rows=1, parent_rows=1).make(torch.float32)
    ones = (torch.ones_like(poses), torch.ones_like(weight))
    sums = BACKENDS[name](*ones, parents, 1.0, 2, 1)
    torch.testing.assert_close(sums.sum(0), torch.full_like(sums[0], 8.0))
    assert (sums[0] - sums[1]).abs().max() > 0.01


@EVERY_BACKEND
def test_nothing_is_kept_where_no_gradient_is_wanted(name: str) -> None:
    operands = Problem().make(torch.float32)
    with torch.no_grad():
        assert not BACKENDS[name](*operands, SCALE, 2, 1).requires_grad


def test_double_precision_stays_double() -> None:
    problem = Problem()
    operands = problem.make()
    sums = attention_pass(*operands, SCALE, 2)
    torch.testing.assert_close(sums, attend_with_all_votes(*operands, problem), rtol=0, atol=1e-12)


_GROWTH = """
import sys, torch
from overlaycaps.memory import peak_memory_mib
from overlaycaps.kernels.backends import BACKENDS
from tests.kernels.problems import Problem
problem = Problem(16, 4, 4, 4, 64, 8, 8, 3, 1, 16)
small = Problem(1, 4, 4, 4, 16, 3, 3, 3, 1, 16)
def run(problem):
    operands = problem.make(torch.float32)
    BACKENDS[sys.argv[1]](*operands, 0.5, problem.kernel_px, 1).sum().backward()
run(small)
before = peak_memory_mib()
run(problem)
print(peak_memory_mib() - before)
"""


@native_only
def test_the_fused_pass_needs_a_fraction_of_the_memory_of_the_votes() -> None:
    command = [sys.executable, "-c", _GROWTH, "native"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    grown_mib = float(done.stdout)
    votes_mib = 16 * 9 * 16 * 16 * 64 * 36 * 4 / 2**20  # 324
    operands_mib = 2 * 16 * 16 * 64 * (8 * 8 + 36) * 4 / 2**20
    assert grown_mib < 6 * operands_mib < votes_mib / 2


@EVERY_BACKEND
@pytest.mark.parametrize("seed", range(12))
def test_problems_drawn_at_random(name: str, seed: int) -> None:
    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    random = torch.Generator().manual_seed(seed)
    kernel_px = draw(1, 3)
    problem = Problem(
        capsules=draw(1, 6),
        rows=draw(1, 20),
        parent_rows=draw(1, 20),
        columns=draw(1, 5),
        batch=draw(1, 40),
        height=draw(kernel_px, 5),
        width=draw(kernel_px, 5),
        kernel_px=kernel_px,
        stride_px=draw(1, 2),
        parents=draw(1, 12),
    )
    operands = problem.make(torch.float32, seed=seed)
    assert_equal_to_rounding(attend(name, problem, operands), attend_exactly(problem, operands))
