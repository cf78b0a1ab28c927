"""Carrying out a prepared run, with its progress shown and Ctrl-C heeded: for every command that trains."""

from __future__ import annotations

import shlex
import warnings
from typing import TYPE_CHECKING

from overlaycaps.cli.progress import show_training
from overlaycaps.config import DEFAULT_RUNS_FOLDER
from overlaycaps.errors import Interrupted
from overlaycaps.train.interrupt import catch_stop_signals

if TYPE_CHECKING:
    from pathlib import Path

    from overlaycaps.train.plan import PreparedRun


def carry_out(run: PreparedRun) -> str:
    """Train a run to its end and return one line about its result.

    Raises:
        Interrupted: if it was stopped; the message says what is saved and how to continue.
    """
    from overlaycaps.kernels import FallbackWarning
    from overlaycaps.train.loop import train
    from overlaycaps.train.result import summarize_result

    # The run's own warnings have said it already.
    warnings.filterwarnings("ignore", category=FallbackWarning)
    try:
        with catch_stop_signals() as stop, show_training(run.folder.path.name) as view:
            return summarize_result(train(run, view, stop))
    except KeyboardInterrupt as error:  # a second Ctrl-C, which waits for nothing
        if not run.folder.can_resume():
            raise
        raise Interrupted(
            f"interrupted; what was done since the last saved state is lost. Continue with "
            f"`{run.folder.describe_resume()}`."
        ) from error


def describe_compare(runs: Path) -> str:
    """Return the command that compares the runs in a folder."""
    where = [] if str(runs) == DEFAULT_RUNS_FOLDER else ["--runs", str(runs)]
    return shlex.join(["overlaycaps", "compare", *where])
