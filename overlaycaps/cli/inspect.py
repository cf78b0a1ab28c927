"""``overlaycaps inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import make_stdout, print_note
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption, JsonOption
from overlaycaps.cli.progress import show_generation
from overlaycaps.errors import Interrupted, UserError
from overlaycaps.train.interrupt import catch_stop_signals


@report_errors
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Data file to look at, whoever made it.")],
    preview: Annotated[
        Path | None,
        typer.Option("--preview", metavar="PNG", help="Draw some samples with their digits and labels to this file."),
    ] = None,
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    """Check every rule of the data format and every sample. List all faults; print what is in the file."""
    from data_gen.preview import check_sheet_target, save_sheet
    from data_gen.store.inspect import inspect_dataset
    from data_gen.store.read import open_dataset
    from overlaycaps.report.inspection import describe_inspection, report_inspection
    from overlaycaps.report.terminal import print_report

    if preview is not None:
        check_sheet_target(preview, force=force)
    with catch_stop_signals() as stop, show_generation(str(file)) as view:

        def show_and_heed(split: str, done: int, total: int) -> None:
            view(split, done, total)
            if stop.requested:
                raise Interrupted(f"interrupted; {file} was not looked at to the end.")

        content = inspect_dataset(file, show_and_heed).to_dict()
    if as_json:
        typer.echo(json.dumps(describe_inspection(content), indent=2, allow_nan=False))
    else:
        print_report(report_inspection(content), make_stdout())
    num_faults = len(content["faults"])
    if preview is not None and not num_faults:
        with open_dataset(file) as dataset:
            save_sheet(dataset, preview, force=force)
        print_note(f"written: {preview}")
    if num_faults:
        undrawn = "" if preview is None else f"; {preview} was not drawn"
        raise UserError(f"{file}: {num_faults} fault{'s' if num_faults > 1 else ''}, listed above{undrawn}.")
