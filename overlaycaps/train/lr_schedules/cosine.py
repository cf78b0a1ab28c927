"""Linear warm-up, then a cosine."""

from __future__ import annotations

import math


def scale_lr(step: int, num_steps: int, warm_up: float) -> float:
    """Return the factor on the peak learning rate at a step (counted from 0) of ``num_steps``.

    Over the first ``warm_up`` of the steps (a share) it rises along a line, whose zero lies one step before the first;
    then it falls to 0 at the end along a cosine.

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), without restarts; warm-up of Goyal et al. 2017 (arXiv
    1706.02677).
    """
    num_warm_up = warm_up * num_steps
    if step + 1 < num_warm_up:
        return (step + 1) / num_warm_up
    return fall_along_cosine(step, num_warm_up, num_steps)


def fall_along_cosine(step: int, start: float, stop: int) -> float:
    """Return (1 + cos(pi s)) / 2, s going from 0 at ``start`` to 1 at ``stop``; 1 before and 0 after."""
    share = min(1.0, max(0.0, step - start) / (stop - start))
    return (1 + math.cos(math.pi * share)) / 2
