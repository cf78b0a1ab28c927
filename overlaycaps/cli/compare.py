"""``overlaycaps compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import make_stdout, print_note
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption, RunsOption
from overlaycaps.cli.training import describe_compare
from overlaycaps.config import DEFAULT_RUNS_FOLDER


@report_errors
def compare(
    runs: RunsOption = Path(DEFAULT_RUNS_FOLDER),
    out: Annotated[Path, typer.Option("--out", help="Folder for report.md and report.json.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read; write no file.")] = False,
    force: ForceOption = False,
) -> None:
    """Compare every finished run. Print accuracy, parameters and cost; write report.md and report.json."""
    from overlaycaps.report.comparison import compare_runs
    from overlaycaps.report.renderers import RENDERERS
    from overlaycaps.report.results import collect_runs
    from overlaycaps.report.terminal import print_report
    from overlaycaps.report.write import write_report

    report = compare_runs(collect_runs(runs), describe_compare(runs))
    if as_json:
        typer.echo(RENDERERS["json"].load()(report), nl=False)
        return
    try:
        paths = write_report(report, out, force=force)
    finally:  # whether or not there is a file, and whether or not its reader stays to the end
        print_report(report, make_stdout())
    print_note(f"written: {', '.join(str(path) for path in paths)}")
