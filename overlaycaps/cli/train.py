"""``overlaycaps train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import make_stdout, print_note, print_warning
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import (
    CpuOption,
    DataOption,
    ForceOption,
    GpuOption,
    ModelOption,
    RoutingOption,
    RunsOption,
    SeedOption,
    SizeOption,
)
from overlaycaps.cli.progress import show_training
from overlaycaps.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_DATA_FILE,
    DEFAULT_EPOCHS,
    DEFAULT_LR,
    DEFAULT_ROUTING,
    DEFAULT_RUNS_FOLDER,
    DEFAULT_SIZE,
    PRECISIONS,
    CapsuleConfig,
)


@report_errors
def train(
    model: ModelOption = "caps",
    size: SizeOption = DEFAULT_SIZE,
    data: DataOption = Path(DEFAULT_DATA_FILE),
    gpu: GpuOption = None,
    cpu: CpuOption = False,
    seed: SeedOption = 0,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help=f"Passes over the training images (default {DEFAULT_EPOCHS}).")
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", help="Training images to show in all, instead of --epochs.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images in an optimiser step.")] = DEFAULT_BATCH_SIZE,
    lr: Annotated[
        float | None,
        typer.Option("--lr", help=f"Peak learning rate of the one-cycle schedule (default {DEFAULT_LR:g})."),
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", help=f"{', '.join(PRECISIONS)}; auto: bf16 on a GPU that has it, else fp32.")
    ] = "auto",
    routing: RoutingOption = DEFAULT_ROUTING,
    routing_iterations: Annotated[
        int, typer.Option("--routing-iterations", help="Routing passes; the first has equal coefficients.")
    ] = CapsuleConfig.iterations,
    runs: RunsOption = Path(DEFAULT_RUNS_FOLDER),
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run's folder (default: made from the options).")
    ] = None,
    force: ForceOption = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Continue the unfinished run in this folder, as it was begun."),
    ] = None,
) -> None:
    """Train a model, choose its best checkpoint by validation, score it once on the test split."""
    from overlaycaps.train.interrupt import catch_stop_signals
    from overlaycaps.train.loop import train as run_training
    from overlaycaps.train.plan import TrainRequest, prepare_resumed_run, prepare_run
    from overlaycaps.train.result import summarize_result

    if resume is not None:
        run = prepare_resumed_run(resume, gpu, cpu)
    else:
        run = prepare_run(
            TrainRequest(
                model=model,
                size=size,
                data_path=data,
                runs_dir=runs,
                gpu=gpu,
                cpu=cpu,
                seed=seed,
                epochs=epochs,
                images=images,
                batch_size=batch_size,
                lr=lr,
                precision=precision,
                routing=routing,
                routing_iterations=routing_iterations,
                name=name,
            )
        )
        run.folder.create(run.describe(), force=force)
    for warning in run.warnings:
        print_warning(warning)
    where = f"{run.runtime.device} in {run.runtime.precision}"
    print_note(f"training {run.config.model} on {where}; run folder {run.folder.path}")
    with catch_stop_signals() as stop, show_training(run.folder.path.name) as view:
        result = run_training(run, view, stop)
    make_stdout().print(summarize_result(result), markup=False, soft_wrap=True)
