"""The bridge from data files to tensors: the one module, beside the command line, that knows ``data_gen``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data_gen.store.read import OverlayFile, open_dataset


@dataclass(frozen=True)
class SplitData:
    """One split in memory: images (N, H, W) uint8 and multi-hot labels (N, 10) uint8."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device) -> SplitData:
        """Return the split on a device; still uint8, a quarter of the size of floats."""
        return SplitData(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True)
class OverlayData:
    """A data file in memory, with what a run records of it."""

    path: Path
    digest: str
    spec: dict[str, Any]
    train: SplitData
    valid: SplitData
    test: SplitData

    @property
    def canvas_px(self) -> int:
        """Height and width of the images."""
        return int(self.train.images.shape[-1])

    def describe(self) -> dict[str, Any]:
        """Return the ``data`` object of a run's result."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "spec": self.spec,
            "num_train": len(self.train),
            "num_valid": len(self.valid),
            "num_test": len(self.test),
        }


def load_data(path: Path) -> OverlayData:
    """Read a data file, checked, into memory.

    Raises:
        data_gen.errors.DataError: if it is missing, foreign, damaged or of a newer format.
    """
    with open_dataset(path) as file:
        return OverlayData(
            path=path,
            digest=file.content_digest,
            spec=file.spec.to_dict(),
            train=_read_split(file, "train"),
            valid=_read_split(file, "valid"),
            test=_read_split(file, "test"),
        )


def _read_split(file: OverlayFile, split: str) -> SplitData:
    arrays = file.read_split(split)
    return SplitData(torch.from_numpy(arrays.images), torch.from_numpy(arrays.labels))
