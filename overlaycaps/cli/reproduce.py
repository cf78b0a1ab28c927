"""``overlaycaps reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.compare import compare
from overlaycaps.cli.console import print_note, print_warning
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.generate import generate
from overlaycaps.cli.options import CpuOption, DataOption, GpuOption, RunsOption, SeedOption, SizeOption, ThreadsOption
from overlaycaps.cli.training import carry_out
from overlaycaps.config import DEFAULT_DATA_FILE, DEFAULT_RUNS_FOLDER, DEFAULT_SIZE
from overlaycaps.errors import Interrupted


@report_errors
def reproduce(
    quick: Annotated[
        bool, typer.Option("--quick", help="A small budget: minutes on two cores, enough to learn, not to conclude.")
    ] = False,
    size: SizeOption = DEFAULT_SIZE,
    data: DataOption = Path(DEFAULT_DATA_FILE),
    runs: RunsOption = Path(DEFAULT_RUNS_FOLDER),
    seed: SeedOption = 0,
    images: Annotated[
        int | None, typer.Option("--images", help="Training images for each model, instead of the default budget.")
    ] = None,
    gpu: GpuOption = None,
    cpu: CpuOption = False,
    threads: ThreadsOption = None,
) -> None:
    """Do the whole comparison. Generate data, train every model on an equal budget, compare; skip what is done."""
    from overlaycaps.report.write import check_report_files
    from overlaycaps.reproduce import plan_requests, plan_run
    from overlaycaps.train.plan import TrainRequest, check_request

    requests = plan_requests(
        TrainRequest(
            model="caps",
            size=size,
            data_path=data,
            runs_dir=runs,
            gpu=gpu,
            cpu=cpu,
            threads=threads,
            seed=seed,
            images=images,
        ),
        quick=quick,
    )
    for request in requests:
        check_request(request)
    check_report_files(Path())
    if data.exists():
        print_note(f"{data} exists and is used as it is")
    else:
        generate(out=data, shard="1/1")  # all of it, also in a job of many processes
    warned: set[str] = set()
    num_trained = 0
    for request in requests:
        planned = plan_run(request)
        run = planned.run
        for warning in set(run.warnings) - warned:
            print_warning(warning)
            warned.add(warning)
        if planned.state == "finished":
            print_note(f"{run.folder.path} is finished")
            continue
        verb = "continuing" if planned.state == "resume" else "training"
        print_note(f"{verb} {run.config.model} on {run.runtime}; run folder {run.folder.path}")
        try:
            print_note(carry_out(run))
        except Interrupted as error:
            raise Interrupted(f"{error} Or give the same `overlaycaps reproduce` again.") from error
        num_trained += 1
    if not num_trained:
        print_note("every run is finished: there is nothing to train")
    compare(runs=runs)
