"""One training step of a model, to be timed, weighed or counted.

As a program it takes a few steps in a process of its own and prints its memory as one line of JSON:

    python -m benchmarks.step --implementation yardstick --batch-size 16
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.yardstick import Yardstick
from overlaycaps.config import CapsuleConfig, TrainConfig
from overlaycaps.kernels import backends
from overlaycaps.memory import current_memory_mib, peak_memory_mib
from overlaycaps.models import build_model
from overlaycaps.models.caps import CapsuleNet
from overlaycaps.train.optimizers.build import make_optimizer


@dataclass(frozen=True)
class StepCase:
    """What a step is made of.

    Attributes:
        implementation: ``native`` or ``torch``, the backend of the routed passes; ``yardstick``; or a model without
            capsules (``cnn``, ``cnn-pool``).
        precision: ``fp32``, or ``bf16`` autocast.
    """

    implementation: str = "native"
    pose: str = "matrix"
    num_channels: int = 128
    num_capsules: int = 16
    pose_size: int = 16
    iterations: int = 2
    batch_size: int = 64
    precision: str = "fp32"

    def to_arguments(self) -> list[str]:
        """Return the options that make this case out of :func:`main`."""
        return [
            word
            for field in fields(self)
            for word in (f"--{field.name.replace('_', '-')}", str(getattr(self, field.name)))
        ]


def make_model(case: StepCase) -> nn.Module:
    """Build the model of a case."""
    torch.manual_seed(0)
    config = CapsuleConfig(
        num_channels=case.num_channels,
        num_capsules=case.num_capsules,
        pose_size=case.pose_size,
        iterations=case.iterations,
    )
    if case.implementation.startswith("cnn"):
        return build_model(case.implementation, config)
    model = build_model("caps" if case.pose == "vector" else "caps-matrix", config)
    if case.implementation == "yardstick":
        assert isinstance(model, CapsuleNet)
        return Yardstick(model)
    return model


def make_step(case: StepCase) -> Callable[[], None]:
    """Return a training step on images that are in memory: forward, loss, backward, update."""
    model = make_model(case)
    config = TrainConfig(
        model="caps",
        size="small",
        seed=0,
        num_images=100 * case.batch_size,
        batch_size=case.batch_size,
        lr=1e-3,
        weight_decay=0.01,
        precision=case.precision,
    )
    optimizer, _ = make_optimizer(model, config, num_steps=100)
    images = torch.randint(0, 256, (case.batch_size, 36, 36), dtype=torch.uint8)
    labels = torch.randint(0, 2, (case.batch_size, 10)).float()
    backend = case.implementation if case.implementation in backends.BACKENDS else "native"

    def step() -> None:
        with use_backend(backend):
            with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
                logits = model(images)
            loss = binary_cross_entropy_with_logits(logits.float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return step


@contextmanager
def use_backend(name: str) -> Any:
    """Let all routed passes on the CPU be computed by one backend."""
    choose = backends.choose_backend
    backends.choose_backend = lambda device_type: backends.Choice(name)
    try:
        yield
    finally:
        backends.choose_backend = choose


def count_flops(case: StepCase) -> int:
    """Return the floating-point operations of a step: those of convolutions, matrix products and routed passes.

    A multiplication with its addition counts as two. The backward pass of a routed pass counts as twice its forward
    pass; that the votes are formed again is the implementation's business and counts for nothing. Normalisations,
    activations, softmax and the update are left out.
    """
    routed = 0
    native = backends.BACKENDS["native"]

    def count_pass(poses: Tensor, weight: Tensor, parents: Tensor, *others: Any) -> Tensor:
        nonlocal routed
        rows = weight.shape[3]
        # A vote number costs as many products as a child's pose has rows, one for the agreement, one for the sum.
        routed += 2 * len(weight) * parents.numel() * (rows + 2)
        return native(poses, weight, parents, *others)

    step = make_step(case)
    backends.BACKENDS["native"] = count_pass
    try:
        with FlopCounterMode(display=False) as counter:
            step()
    finally:
        backends.BACKENDS["native"] = native
    return int(counter.get_total_flops()) + 3 * routed


def main() -> None:
    """Take three steps and print the memory of the process before and at its peak, in MiB."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(StepCase):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    case = StepCase(**vars(parser.parse_args()))
    step = make_step(case)
    # One step of the smallest kind first: libraries and threads belong to the idle size.
    make_step(StepCase(case.implementation, num_channels=1, num_capsules=1, pose_size=4, batch_size=1))()
    idle = current_memory_mib()
    for _ in range(3):
        step()
    print(json.dumps({"idle_mib": idle, "peak_mib": peak_memory_mib()}))


if __name__ == "__main__":
    main()
