"""The main job as one plan: which runs the comparison needs, and which of them are still to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from overlaycaps.errors import UserError
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train.plan import PreparedRun, TrainRequest, prepare_run

# Enough for every model to learn the task well above chance in a few minutes on two cores; not enough to rank them.
QUICK_NUM_IMAGES = 48_000


@dataclass(frozen=True)
class PlannedRun:
    """One run of the comparison, and whether it is finished already, goes on, or starts."""

    run: PreparedRun
    state: Literal["finished", "resume", "start"]


def plan_requests(base: TrainRequest, *, quick: bool) -> list[TrainRequest]:
    """Return what to train: every model to compare, with the options of ``base`` and equal budgets.

    ``quick`` stands for a small budget, where ``base`` names none.
    """
    if quick and base.images is None and base.epochs is None:
        base = replace(base, images=QUICK_NUM_IMAGES)
    return [replace(base, model=model) for model in MATCHED_MODELS]


def plan_run(request: TrainRequest) -> PlannedRun:
    """Return the run with what is to be done about it; a run that is to start has its folder made.

    Raises:
        UserError: if another run stands in its folder.
    """
    run = prepare_run(request)
    if not run.folder.path.exists() or run.folder.is_empty():
        run.folder.create(run.describe(), force=False)
        return PlannedRun(run, "start")
    if not run.is_stored():
        raise UserError(
            f"{run.folder.path} holds another run (other options or other data); move it away or choose another --runs."
        )
    if run.folder.is_finished():
        return PlannedRun(run, "finished")
    if run.folder.can_resume():
        return PlannedRun(run, "resume")
    # It was stopped before its first state was saved: there is nothing in it that could be lost.
    return PlannedRun(run, "start")
