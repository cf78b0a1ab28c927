"""How all benchmarks measure: interleaved rounds, ratios within rounds, memory in processes of their own.

As a program it runs ``overlaycaps`` inside itself, and ends with one line of JSON that says what that took:

    python -m benchmarks.measure generate --out data.h5
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlaycaps.memory import current_memory_mib, peak_memory_mib
from overlaycaps.processor import count_cores, name_processor, read_cpu_info

FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Processor features that decide how fast kernels can be."""

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Timing:
    """Wall-clock seconds of one case, one number a round."""

    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.seconds)

    @property
    def min_s(self) -> float:
        """The quickest round."""
        return min(self.seconds)

    @property
    def max_s(self) -> float:
        """The slowest round."""
        return max(self.seconds)

    @property
    def n(self) -> int:
        """The number of rounds."""
        return len(self.seconds)


@dataclass(frozen=True)
class Ratio:
    """How two cases compare: the ratios of ``n`` rounds, by their median and range."""

    median: float
    low: float
    high: float
    n: int


def time_interleaved(cases: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1) -> dict[str, Timing]:
    """Run all cases once a round, in an order that turns round by round, so that what slows one slows the others.

    Args:
        cases: what to time, by name.
        repeats: rounds that count.
        warm_up: rounds before them that do not.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for number in range(-warm_up, repeats):
        for name in order if number % 2 == 0 else reversed(order):
            started = time.perf_counter()
            cases[name]()
            elapsed = time.perf_counter() - started
            if number >= 0:
                seconds[name].append(elapsed)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def ratio(of: Timing, to: Timing) -> Ratio:
    """Return ``of / to``, taken round by round.

    Raises:
        ValueError: if they have not the same number of rounds.
    """
    shares = [numerator / denominator for numerator, denominator in zip(of.seconds, to.seconds, strict=True)]
    return Ratio(statistics.median(shares), min(shares), max(shares), len(shares))


def run_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run ``python -m module arguments`` and return the JSON object in its last line of output.

    Raises:
        RuntimeError: if it fails, with what it wrote on stderr, or if its last line is no JSON object.
    """
    command = [sys.executable, "-m", module, *arguments]
    lines = run_command(command).splitlines()
    last = lines[-1] if lines else ""
    with contextlib.suppress(json.JSONDecodeError):
        result = json.loads(last)
        if isinstance(result, dict):
            return result
    raise RuntimeError(f"{' '.join(command)} ended without a line of JSON but with {last!r}")


def run_command(command: Sequence[str]) -> str:
    """Run a command as a process of its own, off the terminal, and return its output.

    It finds the packages of this checkout, and keeps compiled modules, as an installed package does: else the first
    thing to be timed would be the compiler.

    Raises:
        RuntimeError: if it fails, with what it wrote on stderr.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def find_program() -> str:
    """Return the path of the installed ``overlaycaps``.

    Raises:
        RuntimeError: if it is not installed for this Python.
    """
    path = shutil.which("overlaycaps", path=sysconfig.get_path("scripts"))
    if path is None:
        raise RuntimeError(f'there is no overlaycaps for {sys.executable}; run `pip install -e ".[test]"`')
    return path


def describe_machine() -> str:
    """Return processor, cores, vector units, versions and revision in one line."""
    present = {flag for flags in read_cpu_info().get("flags", []) for flag in flags.split()}
    flags = " ".join(flag for flag in FLAGS if flag in present)
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{package} {importlib.metadata.version(package)}" for package in ("torch", "numpy")]
    processor = f"{name_processor()}, {count_cores()} cores ({flags or 'no known flags'})"
    return f"{processor}; {', '.join(versions)}; revision {_find_revision()}"


def _find_revision() -> str:
    git = ["git", "-C", str(ROOT)]
    try:
        revision = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changes = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return revision.stdout.strip() + ("-dirty" if changes.stdout.strip() else "")


def format_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its first column to the left and the others to the right."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Run the command line on this process's arguments; print its memory, and whether it imported torch."""
    idle = current_memory_mib()
    # Imported here: only then does what it costs count as the program's.
    from overlaycaps.cli import main as run_program  # noqa: PLC0415

    try:
        run_program()
    except SystemExit as end:
        if end.code:
            raise
    print(json.dumps({"idle_mib": idle, "peak_mib": peak_memory_mib(), "torch_imported": "torch" in sys.modules}))


if __name__ == "__main__":
    main()
