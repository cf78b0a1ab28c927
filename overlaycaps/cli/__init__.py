"""The command line: one command a file; each parses, calls, prints, and decides nothing."""

from __future__ import annotations

import typer

from overlaycaps.cli.compare import compare
from overlaycaps.cli.export import export
from overlaycaps.cli.generate import generate
from overlaycaps.cli.inspect import inspect
from overlaycaps.cli.merge import merge
from overlaycaps.cli.models import models, routings
from overlaycaps.cli.reproduce import reproduce
from overlaycaps.cli.runs import runs
from overlaycaps.cli.train import train
from overlaycaps.cli.version import print_version

app = typer.Typer(
    name="overlaycaps",
    help="Do capsule networks read overlaid digits better than CNNs with the same layers and neurons per layer?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (generate, inspect, merge, export, train, runs, compare, reproduce, models, routings):
    app.command()(command)


@app.callback()
def overlaycaps(
    version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", callback=print_version, is_eager=True
    ),
) -> None:
    """Do capsule networks read overlaid digits better than CNNs with the same layers and neurons per layer?"""


def main() -> None:
    """Run the command line."""
    app()
