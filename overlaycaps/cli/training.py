"""What the commands that train share: what they say before, meanwhile and at the end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from overlaycaps.cli.console import make_stdout, print_note, print_result, print_warning
from overlaycaps.cli.progress import show_grid, show_training
from overlaycaps.config import DEFAULT_RUNS_FOLDER
from overlaycaps.errors import Interrupted, UserError
from overlaycaps.train.interrupt import catch_stop_signals

if TYPE_CHECKING:
    from pathlib import Path

    from overlaycaps.train.grid import CellOutcome
    from overlaycaps.train.plan import PreparedRun, TrainRequest
    from overlaycaps.train.ranks import Ranks


class Speaker:
    """Prints in the first process of a job, and nothing in the others."""

    def __init__(self, ranks: Ranks) -> None:
        self._is_first = ranks.is_first
        self._told: set[str] = set()

    def note(self, message: str) -> None:
        """Print a line to stderr."""
        self._say(print_note, message)

    def result(self, message: str) -> None:
        """Print a line to stdout."""
        self._say(print_result, message)

    def warn(self, messages: Sequence[str]) -> None:
        """Print warnings to stderr, each once."""
        for message in messages:
            if message not in self._told:
                self._told.add(message)
                self._say(print_warning, message)

    def _say(self, show: Callable[[str], None], message: str) -> None:
        if self._is_first:
            show(message)


def train_one(run: PreparedRun, begin: Literal["new", "replace", "resume"]) -> None:
    """Train a run to its end, with its progress shown and Ctrl-C heeded, and print one line about its result.

    Raises:
        Interrupted: if it was stopped; the message says what is saved and how to continue.
    """
    from overlaycaps.train.result import summarize_result
    from overlaycaps.train.session import carry_out

    ranks = run.runtime.ranks
    speaker = Speaker(ranks)
    speaker.warn(run.warnings)
    speaker.note(f"training {run.config.model} on {run.runtime}; run folder {run.folder.path}")
    with (
        catch_stop_signals(patient=ranks.size > 1) as stop,
        show_training(run.folder.path.name, is_shown=ranks.is_first) as view,
    ):
        result = carry_out(run, view, stop, begin)
    speaker.result(summarize_result(result))
    speaker.note(f"compare it with `{describe_compare(run.folder.path.parent)}`")


def train_grid(requests: Sequence[TrainRequest], ranks: Ranks, *, force: bool = False) -> None:
    """Train a grid of runs, and print one line about each.

    Raises:
        Interrupted: if it was stopped; the same command goes on with it.
        UserError: if a cell failed, when all others are done.
    """
    from overlaycaps.train.grid import run_grid

    with catch_stop_signals(patient=ranks.size > 1) as stop, show_grid(is_shown=ranks.is_first) as view:
        outcomes = run_grid(requests, view, stop, ranks, force=force)
    speaker = Speaker(ranks)
    same = "the same command without --force" if force else "the same command again"
    for outcome in outcomes:
        where = f"{outcome.model} seed {outcome.seed}"
        speaker.result(f"{where}: {outcome.state}{', ' if outcome.message else ''}{outcome.message}")
    ranks.on_first(lambda: _refuse_loose_ends(outcomes, same))


def _refuse_loose_ends(outcomes: Sequence[CellOutcome], same: str) -> None:
    """Raise an error where a cell was interrupted or failed; ``same`` names the command that goes on."""
    interrupted, failed = ([outcome.state for outcome in outcomes].count(state) for state in ("interrupted", "failed"))
    if interrupted:
        raise Interrupted(
            f"interrupted with {interrupted} of {len(outcomes)} runs to do; their states are saved. Give {same} to go "
            "on."
        )
    if failed:
        raise UserError(f"{failed} of {len(outcomes)} runs failed, see above; mend the cause and give {same}.")


def show_forecast(requests: Sequence[TrainRequest], ranks: Ranks, *, force: bool, is_grid: bool) -> None:
    """Measure a few steps of each model in a grid, and print what its runs would be and take.

    Raises:
        UserError: as training does.
    """
    from overlaycaps.report.forecast import describe_forecasts
    from overlaycaps.report.terminal import print_report
    from overlaycaps.train.forecast import forecast_grid

    forecasts = forecast_grid(requests, ranks, force=force, goes_on=is_grid)
    speaker = Speaker(ranks)
    for cell in forecasts:
        speaker.warn(cell.warnings)
    if ranks.is_first:
        print_report(describe_forecasts(forecasts), make_stdout())


def describe_compare(runs: Path) -> str:
    """Return the command that compares the runs in a folder."""
    where = [] if str(runs) == DEFAULT_RUNS_FOLDER else ["--runs", str(runs)]
    return shlex.join(["overlaycaps", "compare", *where])
