"""``overlaycaps models`` and ``overlaycaps routings``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from overlaycaps.cli.console import make_stdout
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import JsonOption, SizeOption
from overlaycaps.config import DEFAULT_SIZE, SIZES
from overlaycaps.tables import look_up

if TYPE_CHECKING:
    from overlaycaps.report.table import Report


@report_errors
def models(size: SizeOption = DEFAULT_SIZE, as_json: JsonOption = False) -> None:
    """List every model. Show exact parameter counts, and the matching table layer by layer."""
    config = look_up(SIZES, size, "--size")

    from overlaycaps.models.matching import summarize_models
    from overlaycaps.report.inventory import list_models

    _print(list_models(size, summarize_models(config)), as_json)


@report_errors
def routings(size: SizeOption = DEFAULT_SIZE, as_json: JsonOption = False) -> None:
    """List every routing of capsule models. Show its source, passes and parameters."""
    config = look_up(SIZES, size, "--size")

    from overlaycaps.models.matching import summarize_routings
    from overlaycaps.report.inventory import list_routings

    _print(list_routings(size, summarize_routings(config)), as_json)


def _print(report: Report, as_json: bool) -> None:
    from overlaycaps.report.renderers import RENDERERS
    from overlaycaps.report.terminal import print_report

    if as_json:
        typer.echo(RENDERERS["json"].load()(report), nl=False)
    else:
        print_report(report, make_stdout())
