"""``overlaycaps compare``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import make_stdout, print_note
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption, RunsOption
from overlaycaps.config import DEFAULT_RUNS_FOLDER


@report_errors
def compare(
    runs: RunsOption = Path(DEFAULT_RUNS_FOLDER),
    out: Annotated[Path, typer.Option("--out", help="Folder for report.md and report.json.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read; write no file.")] = False,
    force: ForceOption = False,
) -> None:
    """Compare every finished run: accuracy, parameters, cost; print it and write report.md and report.json."""
    from overlaycaps.report.comparison import compare_runs
    from overlaycaps.report.renderers import RENDERERS
    from overlaycaps.report.results import collect_runs
    from overlaycaps.report.terminal import print_report
    from overlaycaps.report.write import write_report

    where = [] if runs == Path(DEFAULT_RUNS_FOLDER) else ["--runs", str(runs)]
    command = shlex.join(["overlaycaps", "compare", *where])
    report = compare_runs(collect_runs(runs), command)
    if as_json:
        typer.echo(RENDERERS["json"].load()(report), nl=False)
        return
    print_report(report, make_stdout())
    paths = write_report(report, out, force=force)
    print_note(f"written: {', '.join(str(path) for path in paths)}")
