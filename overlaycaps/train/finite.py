"""Where numbers stopped being finite, so that a run that diverged can say in which layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.models.base import OverlayModel
from overlaycaps.train.runtime import Runtime


def has_finite_weights(model: nn.Module) -> bool:
    """Whether all parameters and statistics of a model are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@torch.no_grad()
def describe_broken_layer(model: OverlayModel, images: Tensor, runtime: Runtime) -> str | None:
    """Say which layer holds, or computes from a batch, the first number that is not finite.

    Returns:
        A few words, or None if there is none: weights and forward pass are sound.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the weights of layer {name.rpartition('.')[0] or name}"
    broken: list[str] = []

    def watch(name: str) -> Any:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not all(bool(tensor.isfinite().all()) for tensor in _find_tensors(output)):
                broken.append(name)

        return look

    # An inner layer ends before the layer around it, so that the first one noted is the innermost.
    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    # As in the step, where normalisations use the batch's own statistics; those that they keep stay as they are.
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with runtime.autocast():
            logits = model(images)
    finally:
        for buffer, value in kept:
            buffer.copy_(value)
        for hook in hooks:
            hook.remove()
    if broken:
        return f"the output of layer {broken[0]}"
    return None if logits.isfinite().all() else "the logits"


def describe_broken_gradient(model: nn.Module) -> str | None:
    """Say which layer, of those next to the logits first, has a gradient that is not finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return f"the gradient of layer {name.rpartition('.')[0] or name}"
    return None


def _find_tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _find_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_tensors(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _find_tensors(getattr(value, field.name))
