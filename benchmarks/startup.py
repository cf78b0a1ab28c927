"""How long the command line takes to answer, and whether that imports torch.

    python -m benchmarks.startup [--rounds 9]

Times are of whole processes; that of a Python that does nothing is the least that is possible.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

import typer

from benchmarks.measure import (
    Timing,
    describe_machine,
    find_program,
    format_markdown,
    run_child,
    run_command,
    time_interleaved,
)
from overlaycaps.cli import app

BASELINE = "python -c pass"
AIMS_S = {"overlaycaps --help": 0.4}


def list_commands() -> dict[str, Sequence[str]]:
    """Return the arguments of everything that should answer at once, by the line that a user types."""
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    words = [["--help"], ["--version"], *([name, "--help"] for name in names)]
    return {" ".join(["overlaycaps", *arguments]): arguments for arguments in words}


def time_commands(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Timing]:
    """Time the processes of the program, and of a Python that does nothing."""
    program = find_program()

    def prepare(*command: str) -> Callable[[], object]:
        return lambda: run_command(command)

    cases = {BASELINE: prepare(sys.executable, "-c", "pass")}
    cases |= {line: prepare(program, *arguments) for line, arguments in commands.items()}
    return time_interleaved(cases, rounds)


def imports_torch(arguments: Sequence[str]) -> bool:
    """Run the program in a process of its own, and return whether torch is imported when it ends."""
    return bool(run_child("benchmarks.measure", *arguments)["torch_imported"])


def format_startup(timings: Mapping[str, Timing], torch_imported: Mapping[str, bool]) -> str:
    """Return a table of milliseconds; lines that are not in ``torch_imported`` have nothing to import it."""
    rows = []
    for line, timing in timings.items():
        times = [f"{seconds * 1e3:.0f}" for seconds in (timing.median_s, timing.min_s, timing.max_s)]
        aim = f"{AIMS_S[line] * 1e3:.0f}" if line in AIMS_S else ""
        imported = {True: "yes", False: "no", None: ""}[torch_imported.get(line)]
        rows.append([f"`{line}`", *times, str(timing.n), aim, imported])
    return format_markdown(["command", "median, ms", "min", "max", "rounds", "aim, ms", "torch imported"], rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    commands = list_commands()
    print(f"{describe_machine()}.\n")
    torch_imported = {line: imports_torch(words) for line, words in commands.items()}
    print(format_startup(time_commands(commands, arguments.rounds), torch_imported))


if __name__ == "__main__":
    main()
