"""The main job as one plan: which runs the comparison needs."""

from __future__ import annotations

from dataclasses import replace

from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train.grid import plan_grid
from overlaycaps.train.plan import TrainRequest

# Enough for every model to learn the task well above chance in a few minutes on two cores; not enough to rank them.
QUICK_NUM_IMAGES = 48_000


def plan_requests(base: TrainRequest, *, quick: bool) -> list[TrainRequest]:
    """Return what to train: every model to compare, with the options of ``base`` and equal budgets.

    ``quick`` stands for a small budget, where ``base`` names none.
    """
    if quick and base.images is None and base.epochs is None:
        base = replace(base, images=QUICK_NUM_IMAGES)
    return plan_grid(base, MATCHED_MODELS, [base.seed])
