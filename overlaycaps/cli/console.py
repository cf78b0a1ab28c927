"""The two streams: results go to stdout, progress and warnings to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from overlaycaps.report.format import escape_controls


def make_stdout() -> Console:
    """Return the console for results."""
    _tolerate_encoding(sys.stdout)
    return Console(highlight=False, soft_wrap=False)


def make_stderr() -> Console:
    """Return the console for progress, warnings and errors."""
    _tolerate_encoding(sys.stderr)
    return Console(stderr=True, highlight=False)


def print_result(message: str) -> None:
    """Print one line to stdout."""
    make_stdout().print(Text(escape_controls(message)), soft_wrap=True)


def print_note(message: str) -> None:
    """Print one plain line to stderr."""
    make_stderr().print(Text(escape_controls(message)), soft_wrap=True)


def print_warning(message: str) -> None:
    """Print one yellow line to stderr."""
    make_stderr().print(format_warning(message), soft_wrap=True)


def format_warning(message: str) -> Text:
    """Return a warning as it looks, on whichever console."""
    return Text.assemble(("warning: ", "yellow"), escape_controls(message))


def print_error(message: str) -> None:
    """Print one red line to stderr."""
    make_stderr().print(Text.assemble(("error: ", "bold red"), (escape_controls(message), "red")), soft_wrap=True)


def _tolerate_encoding(stream: object) -> None:
    # A file name or a box character that the terminal's encoding lacks must not end the program.
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
