"""AdamW."""

from __future__ import annotations

from typing import Any

from torch.optim import AdamW

_BETAS = (0.9, 0.99)


def build(groups: list[dict[str, Any]], lr: float, fused: bool | None) -> AdamW:
    """Return AdamW: Adam, whose weights shrink by ``lr * weight_decay`` beside the gradient's step.

    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101).
    """
    return AdamW(groups, lr=lr, betas=_BETAS, fused=fused)
