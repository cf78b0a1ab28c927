"""``overlaycaps runs``."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from overlaycaps.cli.console import make_stdout
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import JsonOption, RunsOption
from overlaycaps.config import DEFAULT_RUNS_FOLDER


@report_errors
def runs(runs: RunsOption = Path(DEFAULT_RUNS_FOLDER), as_json: JsonOption = False) -> None:
    """List the runs and how far each is. Say why one failed, and how to continue one that was interrupted."""
    from overlaycaps.report.renderers import RENDERERS
    from overlaycaps.report.run_list import list_runs
    from overlaycaps.report.terminal import print_report

    report = list_runs(runs, time.time())
    if as_json:
        typer.echo(RENDERERS["json"].load()(report), nl=False)
    else:
        print_report(report, make_stdout())
