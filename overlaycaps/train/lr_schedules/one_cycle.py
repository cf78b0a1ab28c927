"""One cycle of the learning rate."""

from __future__ import annotations

import math

from overlaycaps.train.lr_schedules.cosine import fall_along_cosine

_INITIAL_FACTOR = 1 / 25


def scale_lr(step: int, num_steps: int, warm_up: float) -> float:
    """Return the factor on the peak learning rate at a step (counted from 0) of ``num_steps``.

    It rises from 1/25 to 1 over the first ``warm_up`` of the steps (a share) and falls to 0 at the end, both along a
    cosine. torch's OneCycleLR has the same shape, but divides by zero in runs of five steps and fails on a step past
    the last.

    Source: Smith and Topin 2019 (arXiv 1708.07120), without the momentum cycle.
    """
    num_warm_up = warm_up * num_steps
    if step < num_warm_up:
        return _INITIAL_FACTOR + (1 - _INITIAL_FACTOR) * (1 - math.cos(math.pi * step / num_warm_up)) / 2
    return fall_along_cosine(step, num_warm_up, num_steps)
