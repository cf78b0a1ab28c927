"""Where errors become one line and an exit code."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

    return run
