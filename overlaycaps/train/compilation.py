"""``torch.compile`` for the training step, where it works."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from overlaycaps.models.base import OverlayModel
from overlaycaps.train.runtime import Runtime

Forward = Callable[[Tensor], Tensor]


def compile_forward(model: OverlayModel, batches: Iterable[Tensor], runtime: Runtime) -> tuple[Forward, str | None]:
    """Return the model's forward pass, compiled, or the model itself with the reason why it could not be.

    A step on each of ``batches`` is tried, forward and backward, since torch compiles when it is first called, and
    again when a shape is new: what fails must fail here, and not in the middle of the run. The model's weights and
    statistics are as before when this returns. The compiled pass uses the model's own parameters, so that states saved
    and loaded are those of the model.

    Args:
        model: on the device of the run.
        batches: images of every shape that a training batch of the run has, on the same device.
        runtime: of the run.
    """
    before = copy.deepcopy(model.state_dict())
    random_state = torch.get_rng_state()
    try:
        # One program for each size: of a size that is a symbol, torch 2.13 cannot compile the capsule models.
        forward: Forward = torch.compile(model, dynamic=False)
        for images in batches:
            with runtime.autocast():
                logits = forward(images)
            logits.float().sum().backward()
    # Whatever a compiler may raise: no compiler, no support for the device, an error in the generated code.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return model, f"--compile: torch.compile failed, so the run goes on without it: {reason}"
    finally:
        model.load_state_dict(before)
        model.zero_grad(set_to_none=True)
        torch.set_rng_state(random_state)
    return forward, None
