"""Options that several commands share, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.config import SIZES
from overlaycaps.models import MODELS
from overlaycaps.routing import ROUTINGS, SCHEDULES

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
