"""``overlaycaps train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.config_file import ConfigOption, check_config_code, expected_digest
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.options import (
    AccumulateOption,
    CheckpointOption,
    ClipNormOption,
    CpuOption,
    DataOption,
    ForceOption,
    GpuOption,
    LrOption,
    LrScheduleOption,
    ModelOption,
    OptimizerOption,
    PatienceOption,
    RoutingOption,
    RunsOption,
    ScheduleOption,
    SeedOption,
    SizeOption,
    TensorBoardOption,
    ThreadsOption,
    WarmUpOption,
    WeightDecayOption,
)
from overlaycaps.cli.training import show_forecast, train_grid, train_one
from overlaycaps.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_CHECKPOINT_MINUTES,
    DEFAULT_DATA_FILE,
    DEFAULT_EPOCHS,
    DEFAULT_ROUTING,
    DEFAULT_RUNS_FOLDER,
    DEFAULT_SIZE,
    PRECISIONS,
    CapsuleConfig,
)
from overlaycaps.errors import UsageError
from overlaycaps.tables import is_target
from overlaycaps.train.lr_schedules import DEFAULT_LR_SCHEDULE, DEFAULT_WARM_UP
from overlaycaps.train.optimizers import DEFAULT_OPTIMIZER

# What may change when a run goes on: where and how it is computed.
_FREE_ON_RESUME = {
    "resume",
    "gpu",
    "cpu",
    "threads",
    "data",
    "accumulate",
    "checkpoint_minutes",
    "tensorboard",
}


@report_errors
def train(
    context: typer.Context,
    model: ModelOption = "caps",
    models: Annotated[
        str | None,
        typer.Option("--models", metavar="NAME,...", help="Several models, one run each; what is finished is skipped."),
    ] = None,
    size: SizeOption = DEFAULT_SIZE,
    data: DataOption = Path(DEFAULT_DATA_FILE),
    config: ConfigOption = None,
    gpu: GpuOption = None,
    cpu: CpuOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="A-B,...", help="Several seeds, as in 0-4, one run each and model."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help=f"Passes over the training images (default {DEFAULT_EPOCHS}).")
    ] = None,
    images: Annotated[
        int | None, typer.Option("--images", help="Training images to show in all, instead of --epochs.")
    ] = None,
    patience: PatienceOption = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Images in an optimiser step, over all processes.")
    ] = DEFAULT_BATCH_SIZE,
    accumulate: AccumulateOption = 1,
    optimizer: OptimizerOption = DEFAULT_OPTIMIZER,
    lr: LrOption = None,
    lr_schedule: LrScheduleOption = DEFAULT_LR_SCHEDULE,
    warm_up: WarmUpOption = DEFAULT_WARM_UP,
    weight_decay: WeightDecayOption = None,
    clip_norm: ClipNormOption = None,
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
    checkpoint_minutes: CheckpointOption = DEFAULT_CHECKPOINT_MINUTES,
    tensorboard: TensorBoardOption = False,
    runs: RunsOption = Path(DEFAULT_RUNS_FOLDER),
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run's folder (default: made from the options).")
    ] = None,
    force: ForceOption = False,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="RUN", help="Continue the unfinished run in this folder, as it was begun."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what would run, with memory and time by a short measurement; write nothing."
        ),
    ] = False,
) -> None:
    """Train a model, or many. Each one's best checkpoint by validation is scored once on the test split."""
    check_config_code(context)
    if resume is not None:
        _refuse_new_choices(context)
    is_grid = models is not None or seeds is not None
    if is_grid:
        _refuse_single_choices(context)

    from overlaycaps.train.grid import parse_models, parse_seeds, plan_grid
    from overlaycaps.train.plan import ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run
    from overlaycaps.train.ranks import join_ranks

    with join_ranks() as ranks:
        if resume is not None:
            wanted = ResumeRequest(
                path=resume,
                gpu=gpu,
                cpu=cpu,
                named={model, routing},
                data_path=data if _is_given(context, "data") else None,
                threads=threads,
                accumulate=accumulate if _is_given(context, "accumulate") else None,
                tensorboard=tensorboard,
                checkpoint_minutes=checkpoint_minutes,
            )
            train_one(ranks.together(lambda: prepare_resumed_run(wanted, ranks)), "resume")
            return
        request = TrainRequest(
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
            optimizer=optimizer,
            lr=lr,
            weight_decay=weight_decay,
            lr_schedule=lr_schedule,
            warm_up=warm_up,
            clip_norm=clip_norm,
            patience=patience,
            precision=precision,
            threads=threads,
            accumulate=accumulate,
            checkpoint_minutes=checkpoint_minutes,
            compile=compile,
            fresh=fresh,
            routing=routing,
            routing_iterations=routing_iterations,
            schedule=schedule,
            scale_agreement=agreement_scale,
            layer_norm=layer_norm,
            name=name,
            tensorboard=tensorboard,
            data_digest=expected_digest(context),
        )
        cells = plan_grid(
            request,
            [model] if models is None else parse_models(models),
            [seed] if seeds is None else parse_seeds(seeds),
        )
        if dry_run:
            show_forecast(cells, ranks, force=force, is_grid=is_grid)
        elif is_grid:
            train_grid(cells, ranks, force=force)
        else:
            train_one(ranks.together(lambda: prepare_run(request, ranks)), "replace" if force else "new")


def _refuse_new_choices(context: typer.Context) -> None:
    """Refuse options that a run takes when it begins: they would be given in vain."""
    for parameter in context.command.params:
        name = str(parameter.name)
        # Code that a run was begun with has to be named again, see `prepare_resumed_run`.
        is_code = name in {"model", "routing"} and is_target(str(context.params[name]))
        if _is_given(context, name) and name not in _FREE_ON_RESUME and not is_code:
            raise UsageError(f"{parameter.opts[0]}: --resume continues a run as it was begun; leave one of them out.")


def _refuse_single_choices(context: typer.Context) -> None:
    """Refuse options that say of one run what several are to differ in."""
    for one, several in (("model", "models"), ("seed", "seeds")):
        if _is_given(context, one) and _is_given(context, several):
            raise UsageError(f"--{one} and --{several} exclude each other; give one of them.")
    if _is_given(context, "name"):
        raise UsageError(
            "--name: the runs of --models and --seeds are named by themselves; use --runs to set them apart."
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
