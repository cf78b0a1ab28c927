"""``overlaycaps --version``."""

from __future__ import annotations

import typer

from overlaycaps import __version__


def print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"overlaycaps {__version__}")
        raise typer.Exit
