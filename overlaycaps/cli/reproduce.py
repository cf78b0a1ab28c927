"""``overlaycaps reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from overlaycaps.cli.compare import compare
from overlaycaps.cli.console import print_note
from overlaycaps.cli.errors import report_errors
from overlaycaps.cli.generate import generate
from overlaycaps.cli.options import CpuOption, DataOption, GpuOption, RunsOption, SeedOption, SizeOption, ThreadsOption
from overlaycaps.cli.training import train_grid
from overlaycaps.config import DEFAULT_DATA_FILE, DEFAULT_RUNS_FOLDER, DEFAULT_SIZE


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
    from data_gen.store.read import open_dataset
    from overlaycaps.report.write import check_report_files
    from overlaycaps.reproduce import plan_requests
    from overlaycaps.train.plan import TrainRequest, check_request
    from overlaycaps.train.ranks import join_ranks

    with join_ranks() as ranks:
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

        def check() -> None:
            for request in requests:
                check_request(request, ranks)
            check_report_files(Path())

        def provide_data() -> None:
            if data.exists():
                open_dataset(data).close()  # a file that cannot be used is told once, not by every run
                print_note(f"{data} exists and is used as it is")
            else:
                generate(out=data, shard="1/1")  # all of it, also in a job of many processes

        ranks.together(check)
        ranks.on_first(provide_data)
        train_grid(requests, ranks)
        ranks.on_first(lambda: compare(runs=runs))
