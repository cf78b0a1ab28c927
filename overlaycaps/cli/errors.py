"""Where errors become one line and an exit code."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

import typer

from data_gen.errors import DataError
from overlaycaps.cli.console import print_error
from overlaycaps.errors import Interrupted, UserError
from overlaycaps.files import describe_failure

_P = ParamSpec("_P")


def report_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Let a command end with one line and the right exit code, never with a traceback, when the user can act on it.

    Exit codes: 0 done, 1 the work failed, 2 usage, 130 interrupted.
    """

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            with _treat_sigterm_as_interrupt():
                command(*args, **kwargs)
        except UserError as error:
            print_error(str(error))
            raise typer.Exit(error.exit_code) from error
        except DataError as error:
            print_error(str(error))
            raise typer.Exit(UserError.exit_code) from error
        except KeyboardInterrupt as error:
            print_error("interrupted; what was finished before is kept.")
            raise typer.Exit(Interrupted.exit_code) from error
        except BrokenPipeError:
            raise  # the reader of our output went away; that is not a failure of the work
        except OSError as error:
            print_error(describe_failure(error))
            raise typer.Exit(UserError.exit_code) from error
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            print_error("out of memory; choose a smaller --size, --batch-size or --canvas.")
            raise typer.Exit(UserError.exit_code) from error

    return run


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


def _is_out_of_memory(error: Exception) -> bool:
    # torch's own errors are told by their text: the class for the CPU is RuntimeError, and torch may not be imported.
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text
