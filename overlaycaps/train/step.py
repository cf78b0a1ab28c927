"""One optimiser step, on a batch that several processes may share and each may compute in parts."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from overlaycaps.errors import UserError
from overlaycaps.models import build_model
from overlaycaps.models.base import OverlayModel
from overlaycaps.train.batch_norm import synchronize_batch_norm
from overlaycaps.train.compilation import compile_forward
from overlaycaps.train.finite import describe_broken_gradient, describe_broken_layer
from overlaycaps.train.optimizers.build import make_optimizer
from overlaycaps.train.order import split_sizes
from overlaycaps.train.plan import PreparedRun
from overlaycaps.train.ranks import explain_lost_ranks
from overlaycaps.train.runtime import Runtime


class DivergedError(UserError):
    """A loss, gradient or weight is not finite."""


@dataclass
class TrainStep:
    """What a step works with, and how it is taken.

    Attributes:
        model: whose weights are trained and saved.
        forward: how the model is called in a step: compiled, or with its gradients summed over the processes.
        optimizer: over the model's parameters.
        schedule: of the optimiser's learning rate.
        runtime: of the run.
        num_parts: that a process computes its share of a batch in, one after the other.
        clip_norm: largest norm of the gradient, or none.
        is_compiled: whether ``forward`` is.
    """

    model: OverlayModel
    forward: Callable[[Tensor], Tensor]
    optimizer: Optimizer
    schedule: LRScheduler
    runtime: Runtime
    num_parts: int
    clip_norm: float | None
    is_compiled: bool = False

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.schedule.get_last_lr()[0])

    def take(self, images: Tensor, labels: Tensor, batch_size: int, number: int) -> float:
        """Take a step on this process's share of a batch.

        The loss is the mean of the binary cross-entropy over the whole batch and its classes, whoever computes which
        part of it: shares and parts change the result by rounding only.

        Args:
            images: uint8 (B, H, W), on the device; B is 0 where a batch has fewer images than there are processes.
            labels: uint8 (B, classes), on the device.
            batch_size: images in the whole batch.
            number: of the step, from 1, for messages.

        Returns:
            The loss of the whole batch, in nats.

        Raises:
            DivergedError: if loss or gradient are not finite; the weights are as they were before the step.
            LostRankError: if another process is gone.
        """
        ranks = self.runtime.ranks
        is_idle = len(images) == 0
        if is_idle:  # the others wait for its gradient, which is zero
            images, labels = images.new_zeros(1, *images.shape[1:]), labels.new_zeros(1, *labels.shape[1:])
        num_parts = min(self.num_parts, len(images))
        loss_sum = torch.zeros((), dtype=torch.float64)
        with explain_lost_ranks(ranks):
            for part, (some_images, some_labels) in enumerate(
                zip(images.tensor_split(num_parts), labels.tensor_split(num_parts), strict=True), start=1
            ):
                with self._hold_back(part < num_parts), self.runtime.autocast():
                    logits = self.forward(some_images)
                    total = binary_cross_entropy_with_logits(logits.float(), some_labels.float(), reduction="sum")
                    loss = total * (0.0 if is_idle else 1 / (batch_size * labels.shape[1]))
                    # Gradients of processes are averaged, and are to be added.
                    (loss * ranks.size).backward()
                loss_sum += loss.item()
        loss_value = float(ranks.sum(loss_sum))
        if not math.isfinite(loss_value):
            raise self._explain(f"the loss is {loss_value}", number, images)
        # Known before the step is taken, so that weights never take up what is not finite.
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if not math.isfinite(norm.item()):
            raise self._explain("the gradient is not finite", number, images)
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), self.clip_norm, norm)
        self.optimizer.step()
        self.schedule.step()
        # Now, and not before the next backward pass: until then their memory serves the forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        return loss_value

    def _hold_back(self, is_partial: bool) -> contextlib.AbstractContextManager[None]:
        """Keep gradients to this process until the last part of its share."""
        if is_partial and isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return contextlib.nullcontext()

    def _explain(self, what: str, number: int, images: Tensor) -> DivergedError:
        places = self.runtime.ranks.gather(
            describe_broken_layer(self.model, images, self.runtime) or describe_broken_gradient(self.model)
        )
        where = next((place for place in places if place), None)
        first = f"the first number that is not finite is in {where}" if where else "no layer's output is to blame"
        remedy = "lower --lr" if self.clip_norm is not None else "lower --lr or give --clip-norm"
        return DivergedError(f"{what} at step {number}, at a learning rate of {self.lr:.3g}: {first}; {remedy}.")


def make_step(run: PreparedRun) -> TrainStep:
    """Set up the process and return what takes the steps of a run, with the weights that its seed gives.

    It is not yet compiled, nor connected with other processes.
    """
    runtime, ranks = run.runtime, run.runtime.ranks
    runtime.prepare()
    torch.manual_seed(run.config.seed)
    model = build_model(run.config.model, run.model_config).to(runtime.device)
    if ranks.size > 1:
        synchronize_batch_norm(model, ranks.size)
    optimizer, schedule = make_optimizer(model, run.config, run.plan_batches().num_steps)
    return TrainStep(model, model, optimizer, schedule, runtime, run.accumulate, run.config.clip_norm)


def connect_step(step: TrainStep, run: PreparedRun) -> str | None:
    """Compile the forward pass of a step if the run wants it, and connect it with the other processes.

    The state of the model must be loaded before.

    Returns:
        What to warn of, if compiling failed.
    """
    runtime, ranks = run.runtime, run.runtime.ranks
    failure = None
    if run.config.compile:
        canvas_px = run.data.spec.canvas_px
        sizes = {
            part
            for batch in run.plan_batches().batch_sizes
            for share in split_sizes(batch, ranks.size)
            for part in split_sizes(max(share, 1), min(run.accumulate, max(share, 1)))
        }
        examples = [
            torch.zeros(n, canvas_px, canvas_px, dtype=torch.uint8, device=runtime.device)
            for n in sorted(sizes, reverse=True)
        ]
        step.forward, failure = compile_forward(step.model, examples, runtime)
        step.is_compiled = failure is None
    if ranks.size > 1:
        with explain_lost_ranks(ranks):
            forward = step.forward
            step.forward = DistributedDataParallel(
                forward if isinstance(forward, nn.Module) else step.model,
                device_ids=[runtime.device] if runtime.device.type == "cuda" else None,
                find_unused_parameters=_has_unused_parameters(step.model, run),
            )
    return failure


def _has_unused_parameters(model: OverlayModel, run: PreparedRun) -> bool:
    """Whether a parameter has no part in the logits, which a model of the user's own may have."""
    trial = copy.deepcopy(model).cpu()
    synchronize_batch_norm(trial, 1)
    canvas_px = run.data.spec.canvas_px
    state = torch.get_rng_state()
    trial(torch.zeros(2, canvas_px, canvas_px, dtype=torch.uint8)).sum().backward()
    torch.set_rng_state(state)
    return any(parameter.grad is None for parameter in trial.parameters() if parameter.requires_grad)
