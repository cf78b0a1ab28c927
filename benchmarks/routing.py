"""How fast routing is, against what public implementations do, and how it scales.

    python -m benchmarks.routing [--rounds 7] [--scaling]

Ratios are taken within rounds: every round times all cases once, so that what slows the machine slows them all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.measure import describe_machine, format_markdown, ratio, run_child, time_interleaved
from benchmarks.step import StepCase, count_flops, make_step

MATRIX = StepCase()
VECTOR = replace(MATRIX, pose="vector")
PAPER = replace(MATRIX, num_channels=1024, pose_size=64, batch_size=16)
SMALL = replace(VECTOR, num_channels=64, num_capsules=8)
GEMM_SIZE = 2048

# What is compared with the yardstick: its name, the case, and how many times faster it ought to be.
TARGETS: Sequence[tuple[str, StepCase, float | None]] = (
    ("C=128 n=16 d=16 matrix, batch 64, fp32", MATRIX, 15),
    ("the same, bf16", replace(MATRIX, precision="bf16"), 30),
    ("the same, fp32, 3 iterations", replace(MATRIX, iterations=3), None),
    ("C=128 n=16 d=16 vector, batch 64, fp32", VECTOR, 6),
    ("the same, bf16", replace(VECTOR, precision="bf16"), 12),
    ("the same, fp32, 3 iterations", replace(VECTOR, iterations=3), None),
    ("paper size (C=1024 n=16 d=64) matrix, batch 16, fp32", PAPER, 4),
)


def compare_with_yardstick(rounds: int) -> list[list[str]]:
    """Time steps with the fused pass, with plain torch, and of the yardstick in fp32."""
    rows = []
    for name, case, target in TARGETS:
        cases = {
            "native": case,
            "torch": replace(case, implementation="torch"),
            "yardstick": replace(case, implementation="yardstick", precision="fp32"),
        }
        timings = time_interleaved({key: make_step(value) for key, value in cases.items()}, rounds)
        speed = {key: case.batch_size / timing.median_s for key, timing in timings.items()}
        faster = ratio(timings["yardstick"], timings["native"])
        rows.append(
            [
                name,
                *(f"{speed[key]:.4g}" for key in cases),
                f"**{faster.median:.1f}** ({faster.low:.1f} to {faster.high:.1f})",
                f"{target:g}" if target else "",
            ]
        )
    return rows


def compare_memory() -> list[list[str]]:
    """Weigh one step of each implementation in a process of its own."""
    rows = []
    for name, case in (("C=128 n=16 d=16 matrix, batch 64", MATRIX), ("paper size, matrix, batch 16", PAPER)):
        grown = {key: weigh(replace(case, implementation=key)) for key in ("native", "torch", "yardstick")}
        saved = grown["yardstick"] / grown["native"]
        rows.append([name, *(f"{mib:.0f}" for mib in grown.values()), f"**{saved:.1f}**"])
    return rows


def weigh(case: StepCase) -> float:
    """Return the memory that steps add to an idle process at their peak, in MiB."""
    memory = run_child("benchmarks.step", *case.to_arguments())
    return float(memory["peak_mib"] - memory["idle_mib"])


def measure_share_of_attainable(rounds: int) -> list[list[str]]:
    """Compare the operations per second of steps with those of a large square matrix product."""
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE) for _ in range(2))
    cases = {
        "caps small, 2 iterations": SMALL,
        "caps small, 3 iterations": replace(SMALL, iterations=3),
        "cnn small": replace(SMALL, implementation="cnn"),
        "caps C=128 n=16 d=16": VECTOR,
        "caps paper size, batch 16": replace(PAPER, pose="vector"),
    }
    steps: dict[str, Callable[[], object]] = {name: make_step(case) for name, case in cases.items()}
    timings = time_interleaved({"gemm": lambda: left @ right, **steps}, rounds, warm_up=2)
    gemm_flops = 2 * GEMM_SIZE**3
    rows = [[f"matrix product {GEMM_SIZE}^3", f"{gemm_flops / timings['gemm'].median_s / 1e9:.0f}", ""]]
    for name, case in cases.items():
        flops = count_flops(case)
        slower = ratio(timings["gemm"], timings[name])
        share = [flops / gemm_flops * value for value in (slower.median, slower.low, slower.high)]
        rows.append(
            [
                name,
                f"{flops / timings[name].median_s / 1e9:.0f}",
                f"**{share[0]:.2f}** ({share[1]:.2f} to {share[2]:.2f})",
            ]
        )
    return rows


SCALES: Mapping[str, Iterable[int]] = {
    "batch_size": (1, 4, 16, 64, 256),
    "num_capsules": (4, 8, 16, 32),
    "pose_size": (4, 16, 64),
    "iterations": (1, 2, 3, 4),
}


def scale(rounds: int) -> list[list[str]]:
    """Time and weigh steps of both poses along each quantity, with one and two threads.

    The quickest round counts: a curve is to show the program, not what else the machine does.
    """
    rows = []
    for quantity, values in SCALES.items():
        for value in values:
            changes: dict[str, Any] = {quantity: value}
            cases = [replace(SMALL, pose=pose, **changes) for pose in ("matrix", "vector")]
            steps = {
                (number, threads): use_threads(make_step(case), threads)
                for number, case in enumerate(cases)
                for threads in (1, 2)
            }
            timings = time_interleaved({str(key): step for key, step in steps.items()}, rounds)
            cells = [quantity, str(value)]
            for number, case in enumerate(cases):
                cells += [f"{timings[str((number, threads))].min_s * 1e3:.1f}" for threads in (1, 2)]
                cells.append(f"{weigh(case):.0f}")
            rows.append(cells)
    return rows


def use_threads(step: Callable[[], object], threads: int) -> Callable[[], object]:
    """Return the step with a number of threads of its own."""

    def run() -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            step()
        finally:
            torch.set_num_threads(before)

    return run


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scaling", action="store_true", help="print the scaling curves instead")
    arguments = parser.parse_args()
    rounds: int = arguments.rounds
    print(f"{describe_machine()}; {torch.get_num_threads()} threads; {rounds} rounds.\n")
    if arguments.scaling:
        print("Training step, C=64 n=8 d=16, batch 64, 2 iterations, fp32, where nothing else is said;")
        print("milliseconds of the quickest round, and MiB added at the peak.\n")
        header = ["quantity", "value"]
        for pose in ("matrix", "vector"):
            header += [f"{pose}, 1 thread, ms", "2 threads, ms", "memory, MiB"]
        print(format_markdown(header, scale(rounds)), flush=True)
        return
    print("Training steps, images/s, and how many times faster than the yardstick (median of the rounds, range).\n")
    header = ["what", "native", "torch", "yardstick, fp32", "native / yardstick", "aim"]
    print(format_markdown(header, compare_with_yardstick(rounds)), flush=True)
    print("\nMemory that training steps add to an idle process at their peak, MiB.\n")
    header = ["what", "native", "torch", "yardstick", "yardstick / native"]
    print(format_markdown(header, compare_memory()), flush=True)
    print("\nOperations per second in fp32, and their share of those of a large matrix product.\n")
    print(format_markdown(["what", "GFLOP/s", "share"], measure_share_of_attainable(rounds)))


if __name__ == "__main__":
    main()
