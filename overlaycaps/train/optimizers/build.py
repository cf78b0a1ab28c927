"""From a run's configuration to its optimiser and schedule; ``benchmarks/recipe.py`` is how they were chosen."""

from __future__ import annotations

import functools

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from overlaycaps.config import TrainConfig
from overlaycaps.train.lr_schedules import LR_SCHEDULES
from overlaycaps.train.optimizers import OPTIMIZERS


def make_optimizer(model: nn.Module, config: TrainConfig, num_steps: int) -> tuple[Optimizer, LambdaLR]:
    """Return the optimiser of a run and its schedule over ``num_steps`` steps.

    Weights decay only where they multiply neurons or poses (convolutions, linear layers, transformation matrices);
    biases, priors and normalisations do not.
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
    optimizer: Optimizer = OPTIMIZERS[config.optimizer].load()(groups, config.lr, True if can_fuse else None)
    scale = LR_SCHEDULES[config.lr_schedule].load()
    return optimizer, LambdaLR(optimizer, functools.partial(scale, num_steps=num_steps, warm_up=config.warm_up))
