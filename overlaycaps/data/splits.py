"""Where the images of a split come from: memory, the file, or drawn anew. All are asked in the same way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from data_gen.digits import DigitPool
from data_gen.spec import OverlaySpec
from data_gen.store.read import OverlayFile, open_dataset
from data_gen.synthesis import synthesize_at

_FRESH_STREAM = 2000
"""First spawn key of the seeds of fresh overlays; other streams use other first keys."""


class Split(Protocol):
    """N images with their labels, drawn by position; a position may be drawn in any order, by any process."""

    @property
    def is_instant(self) -> bool:
        """Whether drawing costs next to nothing, so that it need not be done ahead."""

    @property
    def is_shuffled(self) -> bool:
        """Whether positions have to be shuffled: neighbours are the same ones in every epoch."""

    def __len__(self) -> int:
        """Return N."""

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return images (B, H, W) and multi-hot labels (B, classes), both uint8, of an epoch (counted from 0).

        ``positions`` are int64 (B,), on the CPU.
        """

    def to(self, device: torch.device) -> Split:
        """Return the split with its images on a device, if it holds any."""


@dataclass(frozen=True)
class MemorySplit:
    """A split in memory: images (N, H, W) uint8 and multi-hot labels (N, classes) uint8; the same in every epoch."""

    images: Tensor
    labels: Tensor
    is_instant = True
    is_shuffled = True

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return a copy of the rows."""
        chosen = positions.to(self.images.device)
        return self.images[chosen], self.labels[chosen]

    def to(self, device: torch.device) -> MemorySplit:
        """Return the split on a device; still uint8, a quarter of the size of floats."""
        return MemorySplit(self.images.to(device), self.labels.to(device))


class StoredSplit:
    """A split too large for memory: what is drawn is read from the file; the same in every epoch."""

    is_instant = False
    is_shuffled = True

    def __init__(self, path: Path, split: str) -> None:
        self._path, self._split = path, split
        self._file: OverlayFile | None = None
        with open_dataset(path) as file:
            self._num = file.num(split)

    def __len__(self) -> int:
        return self._num

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Read the rows."""
        if self._file is None:
            self._file = open_dataset(self._path, check_parts=False)  # they were, on loading
        values = self._file.read_rows(self._split, positions.tolist(), ("images", "labels"))
        return torch.from_numpy(values["images"]), torch.from_numpy(values["labels"])

    def to(self, device: torch.device) -> StoredSplit:
        """Return the split itself: it holds no images."""
        return self


@dataclass(frozen=True)
class FreshSplit:
    """New overlays of the training digits in every epoch, of the same distribution as those in the file.

    The images of epoch e are samples e N to (e + 1) N of the file's own spec with another seed, which follows from the
    file's seed and the run's: a pure function, so that resuming, other processes and other models see the same images.

    Attributes:
        spec: the file's, with the seed of the fresh overlays.
        pool: the training digits.
    """

    spec: OverlaySpec
    pool: DigitPool
    is_instant = False
    is_shuffled = False

    def __len__(self) -> int:
        return self.spec.num_train

    def draw(self, epoch: int, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the digits and overlay them."""
        samples = synthesize_at(self.spec, self.pool, "train", epoch * len(self) + positions.numpy())
        return torch.from_numpy(samples.images), torch.from_numpy(samples.labels)

    def to(self, device: torch.device) -> FreshSplit:
        """Return the split itself: it holds no images."""
        return self


def derive_fresh_spec(spec: OverlaySpec, run_seed: int) -> OverlaySpec:
    """Return the spec of the fresh overlays of a run: the file's, with a seed of its own."""
    stream = np.random.SeedSequence(spec.seed, spawn_key=(_FRESH_STREAM, run_seed))
    low, high = (int(word) for word in stream.generate_state(2, np.uint32))
    return replace(spec, seed=(high << 32 | low) >> 1)
