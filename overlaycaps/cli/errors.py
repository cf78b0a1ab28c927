"""Where errors become one line and an exit code."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer

from overlaycaps.cli.console import print_error
from overlaycaps.data.failures import explain_failure
from overlaycaps.errors import Interrupted, ToldElsewhereError

_P = ParamSpec("_P")

_TELLING_S = 1.0


def report_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Let a command end with one line and the right exit code, never with a traceback, when the user can act on it.

    Exit codes: 0 done, 1 the work failed, 2 usage, 130 interrupted.
    """

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with exit_on_error(), _treat_sigterm_as_interrupt():
            command(*args, **kwargs)

    return run


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End the program as :func:`report_errors` does; for what runs outside of a command: the callback of an option."""
    try:
        yield
    except KeyboardInterrupt as error:
        print_error("interrupted; what was finished before is kept.")
        raise typer.Exit(Interrupted.exit_code) from error
    except BrokenPipeError:
        raise  # the reader of our output went away; that is not a failure of the work
    except ToldElsewhereError as error:
        # A launcher ends all processes when the first ends; the one that says why is to get that far.
        time.sleep(_TELLING_S)
        raise typer.Exit(error.exit_code) from error
    except Exception as error:
        explained = explain_failure(error)
        if explained is None:
            raise
        print_error(str(explained))
        raise typer.Exit(explained.exit_code) from error


@contextmanager
def _treat_sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, where nothing closer to the work heeds it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
