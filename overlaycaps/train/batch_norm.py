"""BatchNorm over the whole batch where several processes share it.

``torch.nn.SyncBatchNorm`` does the same on CUDA devices only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def find_batch_norm(model: nn.Module) -> str | None:
    """Return the name of the first layer that normalises over the batch, or None."""
    return next((name for name, module in model.named_modules() if isinstance(module, _BatchNorm)), None)


class _Sum(torch.autograd.Function):
    """Sum over the processes; each one's losses depend on all of the terms, so that gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _sum(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class SynchronizedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose mean and variance are those of the images of all processes together.

    With n numbers of a channel in all, x_i: mean = sum(x_i) / n, variance = sum((x_i - mean)^2) / n, each sum over all
    processes; the gradient passes through both.

    Source: Ioffe and Szegedy 2015 (arXiv 1502.03167), equations of algorithm 1.
    """

    num_processes: int = 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        if not self.training or self.num_processes == 1:
            return super().forward(input)
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        ones = values.new_full((1,), values.numel() / values.shape[1])
        sums = _sum(torch.cat([values.sum((0, 2, 3)), ones]))
        count = sums[-1]
        mean = sums[:-1] / count
        centred = values - mean[:, None, None]
        variance = _sum(centred.square().sum((0, 2, 3))) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
            with torch.no_grad():
                self.running_mean.lerp_(mean.detach(), momentum)
                self.running_var.lerp_(variance.detach() * count / (count - 1), momentum)
        normalised: Tensor = centred * torch.rsqrt(variance + self.eps)[:, None, None]
        if self.weight is not None:
            normalised = normalised * self.weight[:, None, None] + self.bias[:, None, None]
        return normalised.to(input.dtype)


def synchronize_batch_norm(model: nn.Module, num_processes: int) -> None:
    """Let the BatchNorm2d of a model normalise over the batches of all processes; names and state stay as they are."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SynchronizedBatchNorm2d
        if isinstance(module, SynchronizedBatchNorm2d):
            module.num_processes = num_processes
