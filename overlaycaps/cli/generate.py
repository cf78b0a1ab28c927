"""``overlaycaps generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import print_result
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
    single_fraction: Annotated[
        float | None, typer.Option("--single-fraction", help="Share of one-digit samples (default: the protocol's).")
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
            help="Folder of IDX files (raw, .gz or .xz) to take digits from: MNIST, EMNIST digits, QMNIST, KMNIST, "
            "Fashion-MNIST. Default: the MNIST that comes with the program.",
        ),
    ] = None,
    force: ForceOption = False,
) -> None:
    """Make a data file of overlaid digits. Training, validation and test samples never share a digit."""
    from data_gen.digits import load_bundled, load_directory
    from data_gen.errors import DataError
    from data_gen.spec import make_spec
    from data_gen.store.replace import check_target
    from data_gen.store.write import write_dataset

    check_target(out, force=force)
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
            max_shift_px=max_shift,
            canvas_px=canvas,
            merge=merge,
            digit_px=None if source is None else source.digit_px,
        )
    except DataError as error:  # a choice of the user's, not a file
        raise UsageError(str(error)) from error
    if source is None:
        source = load_bundled()
    with catch_stop_signals() as stop, show_generation(str(out)) as view:

        def show_and_heed(split: str, done: int, total: int) -> None:
            view(split, done, total)
            if stop.requested:
                raise Interrupted(f"interrupted; {out} was not written.")

        info = write_dataset(out, spec, source, force=force, progress=show_and_heed)
    print_result(
        f"{info.path}: {spec.num_train:,} training, {spec.num_valid:,} validation and {spec.num_test:,} test samples "
        f"({spec.protocol}, {spec.canvas_px}x{spec.canvas_px}, {info.size_bytes / 2**20:.0f} MiB)"
    )
