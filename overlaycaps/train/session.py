"""Carrying out a prepared run: its folder opened and locked, training watched, a failure noted in it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from overlaycaps.data.failures import explain_failure
from overlaycaps.errors import Interrupted, ToldElsewhereError, UserError
from overlaycaps.kernels import FallbackWarning
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.loop import train
from overlaycaps.train.observer import Observer, ObserverGroup
from overlaycaps.train.plan import PreparedRun
from overlaycaps.train.tensorboard import open_tensorboard

Todo = Literal["start", "resume", "finished"]


def find_todo(run: PreparedRun) -> Todo:
    """Say what is left to do of a run, by its folder.

    Raises:
        UserError: if another run stands there.
    """
    if not run.folder.path.exists() or run.folder.is_empty():
        return "start"
    if not run.is_stored():
        raise UserError(
            f"{run.folder.path} holds another run (other options or other data); move it away or choose another --runs."
        )
    return "finished" if run.folder.is_finished() else "resume"


def carry_out(
    run: PreparedRun, observer: Observer, stop: StopFlag, begin: Literal["new", "replace", "resume"]
) -> dict[str, Any]:
    """Train a run to its end, or as far as it gets; no other process trains into its folder meanwhile.

    Args:
        run: what to do.
        observer: of the training.
        stop: asks it to stop.
        begin: the folder is made, or what is in it is replaced, or the run in it goes on.

    Returns:
        The result.

    Raises:
        Interrupted: if it was stopped; the message says what is saved and how to continue.
        RunInUseError: if another process trains into the folder.
        UserError: if it fails in a way that the user can mend; the folder keeps the reason.
    """
    ranks, folder = run.runtime.ranks, run.folder
    first_digest = ranks.on_first(lambda: run.data.digest)
    ranks.together(lambda: _check_same_data(run, first_digest))
    with contextlib.ExitStack() as held:

        def open_folder() -> bool:
            is_locked = held.enter_context(folder.hold())
            if begin == "resume":
                folder.forget_failure()
            else:
                folder.create(run.describe(), force=begin == "replace")
            if is_locked:  # else another process may be writing them
                folder.remove_leftovers()
            return is_locked

        is_locked = ranks.on_first(open_folder)
        if not is_locked and ranks.is_first:
            observer.on_warning(f"{folder.path}: no locks on this file system; let no other process train into it.")
        try:
            with _watch(run, observer) as watcher, _show_fallbacks(watcher):
                return train(run, watcher, stop)
        except KeyboardInterrupt as error:  # a second Ctrl-C, which waits for nothing
            raise Interrupted(
                f"interrupted; what was done since the last saved state is lost. Continue with "
                f"`{folder.describe_resume()}`."
            ) from error
        except (Interrupted, ToldElsewhereError):
            raise
        except Exception as error:
            if ranks.is_first:
                explained = explain_failure(error)
                folder.write_failure(str(explained or error) or type(error).__name__)
            raise


def _check_same_data(run: PreparedRun, digest: str) -> None:
    """Refuse a file that differs from the first process's: on another machine the same path may lead to other data.

    Raises:
        UserError: if it does.
    """
    if run.data.digest != digest:
        raise UserError(
            f"{run.data.path} of rank {run.runtime.ranks.rank} is not the file that rank 0 reads; give all the same "
            "data."
        )


@contextmanager
def _watch(run: PreparedRun, observer: Observer) -> Iterator[Observer]:
    if not run.tensorboard or not run.runtime.ranks.is_first:
        yield observer
        return
    with open_tensorboard(run.folder.events_folder) as events:
        yield ObserverGroup([observer, events])


@contextmanager
def _show_fallbacks(observer: Observer) -> Iterator[None]:
    """Show Python's warnings: those of the package to the observer, others as Python does."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", FallbackWarning)
        show_other: Callable[..., None] = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *details: Any) -> None:
            if issubclass(category, FallbackWarning):
                observer.on_warning(str(message))
            else:
                show_other(message, category, *details)

        warnings.showwarning = show  # type: ignore[assignment]  # takes whatever details there are
        yield
