"""``overlaycaps train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.console import print_note, print_result, print_warning
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import (
    CpuOption,
    DataOption,
    ForceOption,
    GpuOption,
    ModelOption,
    RoutingOption,
    RunsOption,
    ScheduleOption,
    SeedOption,
    SizeOption,
    ThreadsOption,
)
from overlaycaps.cli.training import carry_out, describe_compare
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
from overlaycaps.errors import UsageError
from overlaycaps.tables import is_target


@report_errors
def train(
    context: typer.Context,
    model: ModelOption = "caps",
    size: SizeOption = DEFAULT_SIZE,
    data: DataOption = Path(DEFAULT_DATA_FILE),
    gpu: GpuOption = None,
    cpu: CpuOption = False,
    threads: ThreadsOption = None,
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
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Train on new overlays of the training digits in every epoch, drawn as those in the file were.",
        ),
    ] = False,
    precision: Annotated[
        str,
        typer.Option(
            "--precision", help=f"{', '.join(PRECISIONS)}; auto: bf16 where the device computes in it, else fp32."
        ),
    ] = "auto",
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Pass the training step through torch.compile; it may round differently."),
    ] = False,
    routing: RoutingOption = DEFAULT_ROUTING,
    routing_iterations: Annotated[
        int,
        typer.Option("--routing-iterations", "--iterations", help="Routing passes; the first has equal coefficients."),
    ] = CapsuleConfig.iterations,
    schedule: ScheduleOption = CapsuleConfig.schedule,
    agreement_scale: Annotated[
        bool, typer.Option(help="Attention routing: divide agreements by the root of the pose size.")
    ] = CapsuleConfig.scale_agreement,
    layer_norm: Annotated[
        bool, typer.Option(help="Attention and uniform routing: normalise the poses of the parents.")
    ] = CapsuleConfig.layer_norm,
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
    """Train one model. Its best checkpoint by validation is scored once on the test split."""
    if resume is not None:
        _refuse_new_choices(context)

    from overlaycaps.train.plan import TrainRequest, prepare_resumed_run, prepare_run

    if resume is not None:
        moved_data = data if _is_given(context, "data") else None
        run = prepare_resumed_run(resume, gpu, cpu, named={model, routing}, data_path=moved_data, threads=threads)
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
                threads=threads,
                compile=compile,
                fresh=fresh,
                routing=routing,
                routing_iterations=routing_iterations,
                schedule=schedule,
                scale_agreement=agreement_scale,
                layer_norm=layer_norm,
                name=name,
            )
        )
        run.folder.create(run.describe(), force=force)
    for warning in run.warnings:
        print_warning(warning)
    print_note(f"training {run.config.model} on {run.runtime}; run folder {run.folder.path}")
    print_result(carry_out(run))
    print_note(f"compare it with `{describe_compare(run.folder.path.parent)}`")


def _refuse_new_choices(context: typer.Context) -> None:
    """Refuse options that a run takes when it begins: they would be given in vain."""
    for parameter in context.command.params:
        name = str(parameter.name)
        # Code that a run was begun with has to be named again, see `prepare_resumed_run`.
        is_code = name in {"model", "routing"} and is_target(str(context.params[name]))
        if _is_given(context, name) and name not in {"resume", "gpu", "cpu", "threads", "data"} and not is_code:
            raise UsageError(f"{parameter.opts[0]}: --resume continues a run as it was begun; leave one of them out.")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
