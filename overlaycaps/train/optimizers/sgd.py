"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from typing import Any

from torch.optim import SGD

_MOMENTUM = 0.9


def build(groups: list[dict[str, Any]], lr: float, fused: bool | None) -> SGD:
    """Return SGD with Nesterov momentum; weight decay is added to the gradient.

    Source: Sutskever, Martens, Dahl, Hinton 2013 (ICML 28:1139), as torch has it.
    """
    return SGD(groups, lr=lr, momentum=_MOMENTUM, nesterov=True, fused=fused)
