"""What a run will cost, from a short measurement: a few of its own steps, on its own data, which are then forgotten."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from overlaycaps.memory import forget_peak_memory
from overlaycaps.train.feed import draw_batches
from overlaycaps.train.plan import PreparedRun, TrainRequest, prepare_run
from overlaycaps.train.ranks import Ranks
from overlaycaps.train.session import Todo, find_todo
from overlaycaps.train.step import TrainStep, connect_step, make_step

_MAX_STEPS = 20
_MAX_S = 5.0
_NUM_WARM_UP = 2
_SCORED = 250


@dataclass(frozen=True)
class Forecast:
    """What a run will take.

    Attributes:
        parameters: trainable numbers of the model.
        num_steps: optimiser steps in all.
        num_epochs: epochs, the last one perhaps cut.
        images_per_s: of training, as measured.
        train_time_s: of all steps, at that rate.
        scoring_time_s: of all evaluations and the final test.
        memory_mib: the most that the steps needed: of this process, or of tensors on the GPU; None if not known.
        disk_mib: of the states and weights that the run will keep.
        steps_measured: steps that the estimate is made from.
        warning: what to say if the forward pass could not be compiled.
    """

    parameters: int
    num_steps: int
    num_epochs: int
    images_per_s: float
    train_time_s: float
    scoring_time_s: float
    memory_mib: float | None
    disk_mib: float
    steps_measured: int
    warning: str | None

    @property
    def total_time_s(self) -> float:
        """Time of training and scoring."""
        return self.train_time_s + self.scoring_time_s


@dataclass(frozen=True)
class CellForecast:
    """A cell of a grid: what it is, what is left to do, what it takes.

    ``forecast`` is that of the model's first cell.
    """

    run: PreparedRun
    todo: Todo
    forecast: Forecast
    warnings: tuple[str, ...]


def forecast_grid(
    requests: Sequence[TrainRequest], ranks: Ranks, *, force: bool = False, goes_on: bool = True
) -> list[CellForecast]:
    """Measure each model of a grid once; nothing is written.

    Args:
        requests: the cells.
        ranks: this process among those of the job.
        force: what is there would be trained again.
        goes_on: what is there would be skipped or go on, and not be refused.

    Raises:
        UserError: if a cell's options do not fit, or another run stands in its folder.
    """
    cells: list[CellForecast] = []
    known: dict[str, Forecast] = {}
    for request in requests:
        run = ranks.together(functools.partial(prepare_run, request, ranks))
        if not goes_on:
            ranks.on_first(functools.partial(run.folder.check_free, force=force))
        todo: Todo = "start" if force else ranks.on_first(functools.partial(find_todo, run))
        if request.model not in known:
            known[request.model] = forecast(run)
        warning = known[request.model].warning
        cells.append(CellForecast(run, todo, known[request.model], (*run.warnings, *([warning] if warning else []))))
    return cells


def forecast(run: PreparedRun) -> Forecast:
    """Measure a few steps of a run and predict what all of it takes; nothing is written.

    Several processes call it together.

    Raises:
        UserError: as training does.
    """
    data, runtime = run.data, run.runtime
    ranks = runtime.ranks
    forget_peak_memory()
    plan = run.plan_batches()
    step = make_step(run)
    model = step.model
    warning = connect_step(step, run)

    # All processes take the same number of steps: they wait for each other.
    num_tried = min(_MAX_STEPS + _NUM_WARM_UP, plan.last_step(0))
    batches = plan.split_epoch(0)[:num_tried]
    shares = [ranks.share(batch) for batch in batches]
    seconds: list[float] = []
    sizes: list[int] = []
    model.train()
    started_s = time.perf_counter()
    for batch, (images, labels) in zip(
        batches, draw_batches(data.train.to(runtime.device), 0, shares, runtime.device), strict=True
    ):
        step.take(images, labels, len(batch), len(seconds) + 1)
        runtime.synchronize()
        seconds.append(time.perf_counter() - started_s)
        sizes.append(len(batch))
        if ranks.any(sum(seconds) > _MAX_S and len(seconds) > _NUM_WARM_UP):
            break
        started_s = time.perf_counter()
    counted = slice(min(_NUM_WARM_UP, len(seconds) - 1), None)
    per_image_s = statistics.median(s / size for s, size in zip(seconds[counted], sizes[counted], strict=True))
    scored_s = _time_scoring(run, step) / ranks.size
    num_scored = plan.num_epochs * len(data.valid) + len(data.test)
    return Forecast(
        parameters=model.count_parameters(),
        num_steps=plan.num_steps,
        num_epochs=plan.num_epochs,
        images_per_s=1 / per_image_s,
        train_time_s=plan.num_images * per_image_s,
        scoring_time_s=num_scored * scored_s,
        memory_mib=runtime.measure_peak_memory_mib(),
        disk_mib=_measure_disk_mib(step),
        steps_measured=len(seconds[counted]),
        warning=warning,
    )


@torch.no_grad()
def _time_scoring(run: PreparedRun, step: TrainStep) -> float:
    """Return the seconds that scoring an image takes."""
    step.model.eval()
    best_s = math.inf
    images, _ = run.data.valid.draw(0, torch.arange(min(_SCORED, len(run.data.valid))))
    with run.runtime.autocast():
        for _ in range(2):
            started_s = time.perf_counter()
            step.model(images.to(run.runtime.device)).float().cpu()
            best_s = min(best_s, time.perf_counter() - started_s)
    return best_s / len(images)


def _measure_disk_mib(step: TrainStep) -> float:
    """Return the size of two states, each with the best weights, and of the best weights alone."""
    weights: int = sum(tensor.nbytes for tensor in step.model.state_dict().values())
    moments: int = sum(
        tensor.nbytes
        for state in step.optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    )
    return (2 * (2 * weights + moments) + weights) / 2**20
