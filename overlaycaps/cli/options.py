"""Options that several commands share, with their help."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.config import DEFAULT_CHECKPOINT_MINUTES, SIZES
from overlaycaps.models import MODELS
from overlaycaps.routing import ROUTINGS, SCHEDULES
from overlaycaps.tables import Row
from overlaycaps.train.lr_schedules import DEFAULT_WARM_UP, LR_SCHEDULES
from overlaycaps.train.optimizers import OPTIMIZERS

DataOption = Annotated[Path, typer.Option("--data", help="Data file made by `overlaycaps generate`.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs, one folder each.")]
SizeOption = Annotated[str, typer.Option("--size", help=f"Size of the model: {', '.join(SIZES)}.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed; the same seed gives the same result on the CPU.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace what exists.")]
GpuOption = Annotated[
    int | None,
    typer.Option("--gpu", metavar="N", help="Use CUDA device N; where there is none, warn and use the CPU."),
]
CpuOption = Annotated[bool, typer.Option("--cpu", help="Use the CPU even where there is a GPU.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        help="Threads on the CPU (default: its cores, within a container's quota). Same number, same bytes.",
    ),
]
ModelOption = Annotated[
    str, typer.Option("--model", help=f"Model to train: {', '.join(MODELS)}; or package.module:builder.")
]
RoutingOption = Annotated[
    str,
    typer.Option("--routing", help=f"Routing of a capsule model: {', '.join(ROUTINGS)}; or package.module:Class."),
]
ScheduleOption = Annotated[
    str, typer.Option("--schedule", help=f"Order in which layers are routed: {', '.join(SCHEDULES)}.")
]


def _list_defaults(field: str) -> str:
    """Return a number of each optimiser's: ``adamw 0.008, sgd 0.4``."""
    return ", ".join(f"{row.name} {getattr(row, field):g}" for row in OPTIMIZERS.values())


def _list_summaries(rows: Iterable[Row]) -> str:
    """Return ``name: summary; name: summary``."""
    return "; ".join(f"{row.name}: {row.summary}" for row in rows)


OptimizerOption = Annotated[
    str,
    typer.Option("--optimizer", help=f"{_list_summaries(OPTIMIZERS.values())}."),
]
LrOption = Annotated[
    float | None,
    typer.Option(
        "--lr",
        help=f"Peak learning rate (default: the optimiser's: {_list_defaults('lr')}).",
    ),
]
WeightDecayOption = Annotated[
    float | None,
    typer.Option(
        "--weight-decay",
        help=f"Weight decay of matrices and convolutions (default: the optimiser's: {_list_defaults('weight_decay')}).",
    ),
]
LrScheduleOption = Annotated[
    str,
    typer.Option(
        "--lr-schedule",
        help=f"How the learning rate goes. {_list_summaries(LR_SCHEDULES.values())}.",
    ),
]
WarmUpOption = Annotated[
    float,
    typer.Option("--warm-up", help=f"Share of the steps in which it rises, 0 to 1 (default {DEFAULT_WARM_UP:g})."),
]
ClipNormOption = Annotated[
    float | None, typer.Option("--clip-norm", help="Scale gradients of a larger norm down to this one.")
]
PatienceOption = Annotated[
    int | None,
    typer.Option("--patience", metavar="N", help="End after N evaluations without a better validation exact match."),
]
AccumulateOption = Annotated[
    int,
    typer.Option(
        "--accumulate",
        metavar="N",
        help="Compute each batch in N parts, one after the other: less memory, the same result up to rounding.",
    ),
]
CheckpointOption = Annotated[
    float,
    typer.Option(
        "--checkpoint-minutes",
        help=f"Save the state this often, beside every evaluation (default {DEFAULT_CHECKPOINT_MINUTES:g}).",
    ),
]
TensorBoardOption = Annotated[
    bool,
    typer.Option("--tensorboard", help="Write the run for TensorBoard too; needs the extra overlaycaps[tensorboard]."),
]
