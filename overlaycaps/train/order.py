"""In which order the training images are shown: a pure function of (seed, epoch), so resuming needs no state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from numpy.random import Generator, Philox, SeedSequence
from torch import Tensor


def split_sizes(total: int, num_parts: int) -> list[int]:
    """Return the sizes of so many parts of a whole, as equal as can be, the larger ones first; as ``tensor_split``."""
    size, rest = divmod(total, num_parts)
    return [size + 1] * rest + [size] * (num_parts - rest)


@dataclass(frozen=True)
class BatchPlan:
    """Which images every optimiser step sees.

    Each epoch shows every training image once, in an order of its own; the last epoch stops when ``num_images`` have
    been shown in all. Images that are new in every epoch need no order of their own: they come as they are drawn.
    """

    num_train: int
    num_images: int
    batch_size: int
    seed: int
    is_shuffled: bool = True

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in a whole epoch; its last batch may be smaller."""
        return -(-self.num_train // self.batch_size)

    @property
    def num_epochs(self) -> int:
        """Epochs, the last one perhaps cut."""
        return -(-self.num_images // self.num_train)

    @property
    def num_steps(self) -> int:
        """Optimiser steps in all."""
        whole, rest = divmod(self.num_images, self.num_train)
        return whole * self.steps_per_epoch + -(-rest // self.batch_size)

    @property
    def batch_sizes(self) -> list[int]:
        """Every size that a batch of the run has: the full one, then those that are left at the end of an epoch."""
        whole, rest = divmod(self.num_images, self.num_train)
        sizes = set()
        for shown in (self.num_train if whole else 0, rest):
            sizes |= {self.batch_size if shown >= self.batch_size else 0, shown % self.batch_size}
        return sorted(sizes - {0}, reverse=True)

    def last_step(self, epoch: int) -> int:
        """Return the number of steps done when ``epoch`` (counted from 0) ends."""
        return min((epoch + 1) * self.steps_per_epoch, self.num_steps)

    def order_epoch(self, epoch: int) -> Tensor:
        """Return the indices of the images of an epoch (counted from 0), in order, int64."""
        shown = min(self.num_train, self.num_images - epoch * self.num_train)
        if not self.is_shuffled:
            return torch.arange(shown)
        random = Generator(Philox(SeedSequence(self.seed, spawn_key=(epoch,))))
        return torch.from_numpy(random.permutation(self.num_train)[:shown])

    def split_epoch(self, epoch: int) -> tuple[Tensor, ...]:
        """Return the index batches of an epoch."""
        batches: tuple[Tensor, ...] = self.order_epoch(epoch).split(self.batch_size)
        return batches
