"""How fast data is made: samples in memory, and ``overlaycaps generate`` as a whole.

    python -m benchmarks.synthesis [--rounds 7] [--processes 5]
    python -m benchmarks.synthesis --scale [--processes 3]

With ``--scale``: how time and memory of ``overlaycaps generate`` grow with samples and with workers. Synthesis runs in
one thread: a sample per second is a sample per second and core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import (
    Timing,
    describe_machine,
    find_program,
    format_markdown,
    run_child,
    run_command,
    time_interleaved,
)
from data_gen.digits import DigitSource, split_digits
from data_gen.protocols import PROTOCOLS
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.synthesis import BLOCK_SIZE, synthesize

NUM_SAMPLES = 20 * BLOCK_SIZE
"""Samples a round; whole blocks, as in the writing of files."""

SCALE = (100_000, 500_000, 2_000_000)
WORKERS = (1, 2, 4)
"""Samples and workers of the table of scale."""

AIM_PER_S = 40_000
AIM_S = 5.0


def time_synthesis(source: DigitSource, rounds: int, num_samples: int = NUM_SAMPLES) -> dict[str, Timing]:
    """Time the synthesis of ``num_samples`` training samples in this one thread, by protocol."""

    def prepare(protocol: str) -> Callable[[], object]:
        spec = make_spec(protocol)
        pool = split_digits(source, spec.seed)["train"]
        return lambda: synthesize(spec, pool, "train", 0, num_samples)

    return time_interleaved({protocol: prepare(protocol) for protocol in PROTOCOLS}, rounds)


def format_synthesis(timings: dict[str, Timing], num_samples: int = NUM_SAMPLES) -> str:
    """Return a table of samples per second and core."""
    rows = []
    for protocol, timing in timings.items():
        # The slowest round has the longest time, and so the fewest samples a second.
        speeds = [num_samples / seconds for seconds in (timing.median_s, timing.max_s, timing.min_s)]
        rows.append([protocol, *(f"{speed:,.0f}" for speed in speeds), str(timing.n), f"{AIM_PER_S:,}"])
    return format_markdown(["protocol", "samples/s and core", "slowest", "fastest", "rounds", "aim"], rows)


def time_generate(rounds: int, options: Sequence[str] = ()) -> Timing:
    """Time ``overlaycaps generate`` from the start of its process to its end, the file being closed.

    Removing the file again counts too (less than two hundredths of the whole); else the system would still be busy
    writing earlier files to the disk.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.h5")
        command = [find_program(), "generate", "--out", str(path), *options]

        def generate() -> None:
            run_command(command)
            path.unlink()

        return time_interleaved({"generate": generate}, rounds)["generate"]


def weigh_generate(options: Sequence[str] = ()) -> float:
    """Return the largest resident size of a process of ``overlaycaps generate``, in MiB."""
    with TemporaryDirectory() as folder:
        words = ["generate", "--out", str(Path(folder, "data.h5")), *options]
        return float(run_child("benchmarks.measure", *words)["peak_mib"])


def format_generate(timing: Timing, peak_mib: float) -> str:
    """Return a table of seconds and memory."""
    header = ["command", "median, s", "min", "max", "rounds", "aim, s", "peak memory, MiB"]
    seconds = [f"{value:.2f}" for value in (timing.median_s, timing.min_s, timing.max_s)]
    row = ["`overlaycaps generate`", *seconds, str(timing.n), f"{AIM_S:g}", f"{peak_mib:.0f}"]
    return format_markdown(header, [row])


def measure_scale(num_samples: int, workers: int, rounds: int) -> list[str]:
    """Return a row: time and memory of ``overlaycaps generate`` for so many training samples and workers."""
    options = ("--train", str(num_samples), "--workers", str(workers))
    timing, peak_mib = time_generate(rounds, options), weigh_generate(options)
    return [
        f"{num_samples:,}, {workers} worker{'s' if workers > 1 else ''}",
        *(f"{seconds:.2f}" for seconds in (timing.median_s, timing.min_s, timing.max_s)),
        f"{num_samples / timing.median_s:,.0f}",
        f"{peak_mib:.0f}",
    ]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of synthesis in memory")
    parser.add_argument("--processes", type=int, default=5, help="rounds of overlaycaps generate")
    parser.add_argument("--scale", action="store_true", help="time and memory against samples and workers")
    arguments = parser.parse_args()
    print(f"{describe_machine()}.\n")
    if arguments.scale:
        print(f"`overlaycaps generate --train N --workers W`, whole processes, {arguments.processes} rounds each.\n")
        header = ["training samples", "median, s", "min", "max", "samples/s", "peak memory, MiB"]
        rows = [measure_scale(num, workers, arguments.processes) for num in SCALE for workers in WORKERS]
        print(format_markdown(header, rows))
        return
    print(f"Synthesis in memory, one thread, {NUM_SAMPLES:,} training samples a round.\n")
    print(format_synthesis(time_synthesis(load_bundled(), arguments.rounds)), flush=True)
    print("\nThe whole process, default sizes, to the closed file.\n")
    print(format_generate(time_generate(arguments.processes), weigh_generate()))


if __name__ == "__main__":
    main()
