"""The two streams: results go to stdout, progress and warnings to stderr."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text


def make_stdout() -> Console:
    """Return the console for results."""
    _tolerate_encoding(sys.stdout)
    return Console(highlight=False, soft_wrap=False)


def make_stderr() -> Console:
    """Return the console for progress, warnings and errors."""
    _tolerate_encoding(sys.stderr)
    return Console(stderr=True, highlight=False)


def print_warning(message: str) -> None:
    """Print one yellow line to stderr; the message is shown as it is, never read as markup."""
    make_stderr().print(Text.assemble(("warning: ", "yellow"), message), soft_wrap=True)


def print_error(message: str) -> None:
    """Print one red line to stderr; the message is shown as it is, never read as markup."""
    make_stderr().print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)


def print_note(message: str) -> None:
    """Print one plain line to stderr."""
    make_stderr().print(Text(message), soft_wrap=True)


def _tolerate_encoding(stream: object) -> None:
    # A file name or a box character that the terminal's encoding lacks must not end the program.
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
