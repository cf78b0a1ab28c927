"""The routed pass alone: which backend is how fast, how long its first use takes, how much memory it needs.

    python -m benchmarks.routed_pass [--rounds 7]

Beside the package's backends it times the candidates of :mod:`benchmarks.candidates` whose packages are installed. As
a program with ``--weigh`` it computes one pass in a process of its own and prints its memory as one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import (
    Timing,
    describe_machine,
    format_markdown,
    run_child,
    time_interleaved,
)
from overlaycaps.kernels import gather_children
from overlaycaps.kernels.backends import BACKENDS
from overlaycaps.memory import current_memory_mib, peak_memory_mib

Pass = Callable[..., Tensor]

# Name, module, function and the package that it needs; the functions take gathered children.
CANDIDATES = (
    ("numba", "benchmarks.candidates.numba_pass", "numba"),
    ("torch.compile", "benchmarks.candidates.compiled_pass", "torch"),
)


@dataclass(frozen=True)
class PassCase:
    """Sizes of a routed pass; letters as in :mod:`overlaycaps.kernels`."""

    capsules: int
    rows: int
    columns: int
    batch: int
    size_px: int
    kernel_px: int
    parents: int

    def make(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return random operands as a layer has them, the pose innermost."""
        torch.manual_seed(0)
        side = self.size_px - self.kernel_px + 1
        poses = torch.randn(self.batch, self.size_px, self.size_px, self.capsules, self.rows, self.columns)
        parents = torch.randn(self.batch, side, side, self.parents, self.rows, self.columns)
        weight = torch.randn(self.capsules * self.kernel_px**2, self.parents, self.rows, self.rows) / self.rows
        operands = (poses.permute(3, 4, 5, 0, 1, 2), weight, parents.permute(3, 4, 5, 0, 1, 2))
        return operands[0].requires_grad_(), operands[1].requires_grad_(), operands[2].requires_grad_()

    @property
    def vote_mib(self) -> float:
        """Size of all votes in float32."""
        side = self.size_px - self.kernel_px + 1
        children = self.capsules * self.kernel_px**2
        return children * self.parents * self.rows * self.columns * self.batch * side**2 * 4 / 2**20


CASES = {
    "conv capsules, matrix (I=144 J=16 d=16, 2,304 positions)": PassCase(16, 4, 4, 64, 8, 3, 16),
    "conv capsules, vector (the same)": PassCase(16, 16, 1, 64, 8, 3, 16),
    "class capsules, matrix (I=576 J=10 d=16, 64 positions)": PassCase(16, 4, 4, 64, 6, 6, 10),
    "class capsules, vector (the same)": PassCase(16, 16, 1, 64, 6, 6, 10),
}
SCALE = 0.25


def find_implementations() -> dict[str, Pass]:
    """Return the backends of the package and the candidates that can be imported."""
    found: dict[str, Pass] = dict(BACKENDS)
    for name, module, package in CANDIDATES:
        if importlib.util.find_spec(package) is not None:
            found[name] = _gather_first(importlib.import_module(module).attention_pass)
    return found


def _gather_first(function: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> Pass:
    def attend(poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int) -> Tensor:
        children = gather_children(poses, kernel_px)
        return function(children, weight, parents.flatten(3).contiguous(), scale).view(parents.shape)

    return attend


def time_passes(case: PassCase, implementations: dict[str, Pass], rounds: int) -> dict[str, tuple[Timing, Timing]]:
    """Time forward alone, and forward with backward, of each implementation; all have to agree."""
    # torch.compile gives up after a number of shapes; every case is to have its own code.
    torch.compiler.reset()
    operands = case.make()
    expected = BACKENDS["torch"](*operands, SCALE, case.kernel_px)
    direction = torch.randn_like(expected)
    steps: dict[str, Callable[[], object]] = {}
    for name, attend in implementations.items():

        def forward(attend: Pass = attend) -> Tensor:
            with torch.no_grad():
                return attend(*operands, SCALE, case.kernel_px)

        def both(attend: Pass = attend) -> object:
            return torch.autograd.grad(attend(*operands, SCALE, case.kernel_px), operands, direction)

        torch.testing.assert_close(attend(*operands, SCALE, case.kernel_px), expected, rtol=1e-4, atol=1e-4)
        steps[f"{name} forward"] = forward
        steps[f"{name} both"] = both
    timings = time_interleaved(steps, rounds, warm_up=2)
    return {name: (timings[f"{name} forward"], timings[f"{name} both"]) for name in implementations}


def time_first_use(name: str) -> tuple[float, float]:
    """Seconds of the first forward and backward in a new process, with an empty cache and with the one it left."""
    folder = tempfile.mkdtemp(prefix="overlaycaps-first-use-")
    try:
        for variable in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            os.environ[variable] = folder
        cold, cached = (float(run_child("benchmarks.routed_pass", "--first-use", name)["seconds"]) for _ in range(2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return cold, cached


def weigh(capsules: int, implementation: str) -> float:
    """Return the memory that a pass of so many capsules below adds at its peak, in MiB, operands included."""
    memory = run_child("benchmarks.routed_pass", "--weigh", str(capsules), "--implementation", implementation)
    return float(memory["peak_mib"] - memory["idle_mib"])


def _case_of(capsules: int) -> PassCase:
    return PassCase(capsules, 4, 4, 64, 8, 3, 16)


def _run_once(case: PassCase, implementation: str) -> None:
    operands = case.make()
    sums = find_implementations()[implementation](*operands, SCALE, case.kernel_px)
    torch.autograd.grad(sums.sum(), operands)


def main() -> None:
    """Print the tables, or be the child process of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--weigh", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--implementation", default="native", help=argparse.SUPPRESS)
    parser.add_argument("--first-use", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.weigh:
        _run_once(PassCase(1, 4, 4, 16, 3, 3, 16), arguments.implementation)
        idle = current_memory_mib()
        _run_once(_case_of(arguments.weigh), arguments.implementation)
        print(json.dumps({"idle_mib": idle, "peak_mib": peak_memory_mib()}))
        return
    if arguments.first_use:
        started = time.perf_counter()
        _run_once(_case_of(2), arguments.first_use)
        print(json.dumps({"seconds": time.perf_counter() - started}))
        return
    implementations = find_implementations()
    print(f"{describe_machine()}; {torch.get_num_threads()} threads; {arguments.rounds} rounds.\n")
    print("Milliseconds of a routed pass, forward / forward and backward (medians).\n")
    rows = []
    for name, case in CASES.items():
        timings = time_passes(case, implementations, arguments.rounds)
        rows.append([name, *(f"{f.median_s * 1e3:.1f} / {b.median_s * 1e3:.1f}" for f, b in timings.values())])
    print(format_markdown(["pass", *implementations], rows), flush=True)
    print("\nSeconds of the first use in a process, forward and backward: nothing cached / cached.\n")
    first = ["{:.1f} / {:.1f}".format(*time_first_use(name)) for name in implementations]
    print(format_markdown(["", *implementations], [["first use", *first]]), flush=True)
    print("\nPeak memory of a pass (forward and backward, operands included), MiB, as its children grow eightfold.\n")
    rows = []
    for capsules in (4, 8, 16, 32):
        case = _case_of(capsules)
        sizes = [f"{weigh(capsules, name):.0f}" for name in BACKENDS]
        operands_mib = 2 * sum(operand.numel() for operand in case.make()) * 4 / 2**20
        rows.append([str(9 * capsules), f"{case.vote_mib:.0f}", f"{operands_mib:.0f}", *sizes])
    print(format_markdown(["children", "all votes alone", "operands and gradients", *BACKENDS], rows))


if __name__ == "__main__":
    main()
