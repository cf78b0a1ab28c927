"""The one optimiser and schedule that all models share; ``benchmarks/recipe.py`` is how they were chosen."""

from __future__ import annotations

import functools
import math

from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from overlaycaps.config import TrainConfig

OPTIMIZER_NAME = "adamw"
SCHEDULE_NAME = "one-cycle"
_BETAS = (0.9, 0.99)
_WARM_UP_SHARE = 0.2
_INITIAL_FACTOR = 1 / 25


def make_optimizer(model: nn.Module, config: TrainConfig, num_steps: int) -> tuple[AdamW, LambdaLR]:
    """Return AdamW and a one-cycle schedule over ``num_steps`` optimiser steps.

    Weights decay only where they multiply neurons or poses (convolutions, linear layers, transformation matrices);
    biases, priors and normalisations do not.

    Source: AdamW, Loshchilov and Hutter 2019 (arXiv 1711.05101); for the schedule see :func:`scale_lr`.
    """
    norms = {id(p) for module in model.modules() if isinstance(module, nn.LayerNorm) for p in module.parameters()}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        multiplies = name.endswith("weight") and parameter.ndim > 1 and id(parameter) not in norms
        (decayed if multiplies else others).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    # One loop over all parameters instead of a dozen operations for each of them; elsewhere torch chooses by itself.
    can_fuse = all(parameter.device.type in {"cpu", "cuda"} for parameter in model.parameters())
    optimizer = AdamW(groups, lr=config.lr, betas=_BETAS, fused=True if can_fuse else None)
    return optimizer, LambdaLR(optimizer, functools.partial(scale_lr, num_steps=num_steps))


def scale_lr(step: int, num_steps: int) -> float:
    """Return the factor on the peak learning rate at a step (counted from 0) of ``num_steps``.

    It rises from 1/25 to 1 over the first fifth of the steps and falls to 0 at the end, both along a cosine. torch's
    OneCycleLR has the same shape, but divides by zero in runs of five steps and fails on a step past the last.

    Source: Smith and Topin 2019 (arXiv 1708.07120), without the momentum cycle.
    """
    num_warm_up = _WARM_UP_SHARE * num_steps
    if step < num_warm_up:
        return _INITIAL_FACTOR + (1 - _INITIAL_FACTOR) * (1 - math.cos(math.pi * step / num_warm_up)) / 2
    done = min(1.0, (step - num_warm_up) / (num_steps - num_warm_up))
    return (1 + math.cos(math.pi * done)) / 2
