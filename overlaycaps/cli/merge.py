"""``overlaycaps merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import print_note, print_result
from overlaycaps.cli.datasets import describe_dataset
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption
from overlaycaps.cli.progress import show_generation
from overlaycaps.config import DEFAULT_DATA_FILE
from overlaycaps.errors import Interrupted
from overlaycaps.train.interrupt import catch_stop_signals


@report_errors
def merge(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Files of all shards, in any order.")],
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path(DEFAULT_DATA_FILE),
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Write the samples into the file. Without it the file refers to the parts, which must lie in its "
            "folder or below and stay there.",
        ),
    ] = False,
    force: ForceOption = False,
) -> None:
    """Make one data file of its parts. They are what `overlaycaps generate --shard` wrote."""
    from data_gen.store.merge import merge_parts

    with catch_stop_signals() as stop, show_generation(str(out)) as view:

        def show_and_heed(split: str, done: int, total: int) -> None:
            view(split, done, total)
            if stop.requested:
                raise Interrupted(f"interrupted; {out} was not written.")

        info = merge_parts(parts, out, copy=copy, force=force, progress=show_and_heed)
    print_result(describe_dataset(info))
    if not copy:
        print_note(f"{out} refers to its {len(parts)} parts: keep them where they are")
