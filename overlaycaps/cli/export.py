"""``overlaycaps export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import print_result
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption
from overlaycaps.cli.progress import show_generation
from overlaycaps.errors import Interrupted, UsageError
from overlaycaps.train.interrupt import catch_stop_signals


def _describe_exporters() -> str:
    from data_gen.exporters import EXPORTERS

    return "; ".join(f"{name}: {exporter.summary}" for name, exporter in EXPORTERS.items())


@report_errors
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Data file made by `overlaycaps generate`.")],
    to: Annotated[str, typer.Option("--to", help=f"Format. {_describe_exporters()}.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="File or folder to write (default: named after the data file).")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option("--split", help="train, valid or test; may be repeated (default: all three).")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write samples in another format, for other programs."""
    from data_gen.errors import DataError
    from data_gen.exporters import get_exporter
    from data_gen.spec import SPLITS, check_split
    from data_gen.store.read import open_dataset

    try:
        exporter = get_exporter(to)
        splits = [check_split(name) for name in split or SPLITS]
    except DataError as error:  # a choice of the user's, not a file
        raise UsageError(str(error)) from error
    target = exporter.default_out(file) if out is None else out
    with open_dataset(file) as dataset, catch_stop_signals() as stop, show_generation(str(target)) as view:

        def show_and_heed(name: str, done: int, total: int) -> None:
            view(name, done, total)
            if stop.requested:
                raise Interrupted(f"interrupted; {target} was not written.")

        num_samples = exporter.export(dataset, target, splits, force=force, progress=show_and_heed)
    print_result(f"{target}: {num_samples:,} samples of {file}")
