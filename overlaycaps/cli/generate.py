"""``overlaycaps generate``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import print_note, print_result
from overlaycaps.cli.datasets import describe_dataset
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import ForceOption, SeedOption
from overlaycaps.cli.progress import show_generation
from overlaycaps.config import DEFAULT_DATA_FILE
from overlaycaps.errors import Interrupted, UsageError
from overlaycaps.train.interrupt import catch_stop_signals


def _describe_protocols() -> str:
    from data_gen.protocols import PROTOCOLS

    return "; ".join(f"{protocol.name}: {protocol.summary}" for protocol in PROTOCOLS.values())


@report_errors
def generate(
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path(DEFAULT_DATA_FILE),
    protocol: Annotated[
        str, typer.Option("--protocol", help=f"Named defaults of the task. {_describe_protocols()}.")
    ] = "diverse",
    train: Annotated[int | None, typer.Option("--train", help="Training samples (default 60000).")] = None,
    valid: Annotated[int | None, typer.Option("--valid", help="Validation samples (default 5000).")] = None,
    test: Annotated[int | None, typer.Option("--test", help="Test samples (default 10000).")] = None,
    seed: SeedOption = 0,
    max_digits: Annotated[
        int | None, typer.Option("--max-digits", help="Most digits in a sample, 1 to 4 (default 2).")
    ] = None,
    single_fraction: Annotated[
        float | None,
        typer.Option(
            "--single-fraction",
            help="Share of one-digit samples (default: the protocol's); the other numbers share the rest equally.",
        ),
    ] = None,
    count_weights: Annotated[
        str | None,
        typer.Option(
            "--count-weights",
            metavar="N:W,...",
            help="Weight of each number of digits instead, as in 1:1/6,2:5/6; they need not add up to 1.",
        ),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar="MIN:MAX",
            help="Keep only overlays whose share of inked pixels that several digits ink is within MIN and MAX.",
        ),
    ] = None,
    max_shift: Annotated[
        int | None, typer.Option("--max-shift", help="Largest shift of a digit, in pixels (default: the protocol's).")
    ] = None,
    canvas: Annotated[
        int | None, typer.Option("--canvas", help="Height and width of a sample, in pixels (default: the protocol's).")
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            "--merge",
            help="How overlaid digits become one image: clip (sum, cut at 255), max or mean. With mean, single digits "
            "stay bright and overlaid ones are halved, so brightness alone gives the digit count away.",
        ),
    ] = None,
    digits: Annotated[
        Path | None,
        typer.Option(
            "--digits",
            help="Folder of IDX files (raw, .gz or .xz) to take digits from: MNIST, EMNIST (letters too), QMNIST, "
            "KMNIST, Fashion-MNIST; their labels are the classes. Default: the MNIST that comes with the program.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=256, help="Threads that draw samples; any number, same bytes.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Write only part I of N, the first being 1, for `overlaycaps merge`. A part that is there already is "
            "kept. Under torchrun each process writes a part of its own.",
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Make a data file of overlaid digits. Training, validation and test samples never share a digit."""
    from data_gen.counts import parse_count_weights
    from data_gen.errors import DataError
    from data_gen.overlap import parse_overlap
    from data_gen.sharding import choose_shard
    from data_gen.sources import load_bundled, load_directory
    from data_gen.spec import make_spec
    from data_gen.store.replace import check_target
    from data_gen.store.write import write_dataset

    try:
        part, target = choose_shard(out, shard, os.environ)
    except DataError as error:
        raise UsageError(str(error)) from error
    if part is None:
        check_target(target, force=force)
    # Unpacking the bundled digits takes a second; choices that do not fit are told before.
    source = None if digits is None else load_directory(digits)
    try:
        spec = make_spec(
            protocol,
            seed=seed,
            num_train=train,
            num_valid=valid,
            num_test=test,
            single_fraction=single_fraction,
            max_digits=max_digits,
            count_weights=None if count_weights is None else parse_count_weights(count_weights),
            max_shift_px=max_shift,
            canvas_px=canvas,
            merge=merge,
            overlap=None if overlap is None else parse_overlap(overlap),
            digit_px=None if source is None else source.digit_px,
            class_names=None if source is None else source.class_names,
        )
    except DataError as error:  # a choice of the user's, not a file
        raise UsageError(str(error)) from error
    if source is None:
        source = load_bundled()
    with catch_stop_signals() as stop, show_generation(str(target)) as view:

        def show_and_heed(split: str, done: int, total: int) -> None:
            view(split, done, total)
            if stop.requested:
                raise Interrupted(f"interrupted; {target} was not written.")

        info = write_dataset(target, spec, source, shard=part, num_workers=workers, force=force, progress=show_and_heed)
    print_result(describe_dataset(info))
    if part is not None and part.count > 1:
        print_note(f"put all {part.count} parts together with `overlaycaps merge PART... --out FILE`")
