"""Carrying out a prepared run, with its progress shown and Ctrl-C heeded: for every command that trains."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overlaycaps.cli.progress import TrainingView, show_training
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

    try:
        with catch_stop_signals() as stop, show_training(run.folder.path.name) as view, warnings.catch_warnings():
            warnings.simplefilter("always", FallbackWarning)
            warnings.showwarning = _show_through(view, warnings.showwarning)
            return summarize_result(train(run, view, stop))
    except KeyboardInterrupt as error:  # a second Ctrl-C, which waits for nothing
        if not run.folder.can_resume():
            raise
        raise Interrupted(
            f"interrupted; what was done since the last saved state is lost. Continue with "
            f"`{run.folder.describe_resume()}`."
        ) from error


def _show_through(view: TrainingView, show_other: Callable[..., None]) -> Callable[..., None]:
    """Return how to show a Python warning: those of the package as the program's own, others as Python does."""
    from overlaycaps.kernels import FallbackWarning

    def show(message: Warning | str, category: type[Warning], *details: Any) -> None:
        if issubclass(category, FallbackWarning):
            view.on_warning(str(message))
        else:
            show_other(message, category, *details)

    return show


def describe_compare(runs: Path) -> str:
    """Return the command that compares the runs in a folder."""
    where = [] if str(runs) == DEFAULT_RUNS_FOLDER else ["--runs", str(runs)]
    return shlex.join(["overlaycaps", "compare", *where])
