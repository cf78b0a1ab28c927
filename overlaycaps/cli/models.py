"""``overlaycaps models``."""

from __future__ import annotations

from typing import Annotated

import typer

from overlaycaps.cli.console import make_stdout
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import SizeOption
from overlaycaps.config import DEFAULT_SIZE, SIZES
from overlaycaps.tables import look_up


@report_errors
def models(
    size: SizeOption = DEFAULT_SIZE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")] = False,
) -> None:
    """List every model with its exact parameter count, and the matching table layer by layer."""
    config = look_up(SIZES, size, "--size")

    from overlaycaps.models.matching import summarize_models
    from overlaycaps.report.inventory import list_models
    from overlaycaps.report.renderers import RENDERERS
    from overlaycaps.report.terminal import print_report

    report = list_models(size, summarize_models(config))
    if as_json:
        typer.echo(RENDERERS["json"].load()(report), nl=False)
    else:
        print_report(report, make_stdout())
