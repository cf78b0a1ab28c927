"""From a data file to what a run trains and is scored on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data_gen.errors import DataError
from data_gen.spec import OverlaySpec
from data_gen.store.format import SAMPLE_FIELDS, row_bytes
from data_gen.store.read import OverlayFile, open_dataset
from data_gen.synthesis import check_overlap
from overlaycaps.data.splits import FreshSplit, MemorySplit, Split, StoredSplit, derive_fresh_spec

MAX_MEMORY_BYTES = 2 * 2**30
"""Splits of more than 2 GiB (1.6 million samples of 36x36) are read from the file batch by batch."""


@dataclass(frozen=True)
class OverlayData:
    """A data file, ready to draw from, with what a run records of it."""

    path: Path
    digest: str
    spec: OverlaySpec
    train: Split
    valid: Split
    test: Split

    def describe(self) -> dict[str, Any]:
        """Return the ``data`` object of a run's result."""
        return {
            "path": str(self.path),
            "digest": self.digest,
            "spec": self.spec.to_dict(),
            "num_train": len(self.train),
            "num_valid": len(self.valid),
            "num_test": len(self.test),
        }


def load_data(path: Path, fresh_seed: int | None = None, max_memory_bytes: int = MAX_MEMORY_BYTES) -> OverlayData:
    """Read a data file, checked: every sample against its digest, also of splits that stay in the file.

    Args:
        path: the file.
        fresh_seed: of a run that trains on fresh overlays; its training split is drawn, not read.
        max_memory_bytes: size of a split from which on it stays in the file.

    Raises:
        data_gen.errors.DataError: if it is missing, foreign, damaged, of another format version, or a part of a
            dataset.
    """
    with open_dataset(path) as file:
        if file.shard.count > 1:
            raise DataError(
                f"{path}: shard {file.shard} of a dataset, not the whole; put the shards together with `overlaycaps "
                "merge`"
            )
        file.verify_digest()
        if fresh_seed is None:
            train = _read_split(file, "train", max_memory_bytes)
        else:
            train = FreshSplit(derive_fresh_spec(file.spec, fresh_seed), file.read_pool("train"))
            _check_fresh(path, train)
        return OverlayData(
            path=path,
            digest=file.content_digest,
            spec=file.spec,
            train=train,
            valid=_read_split(file, "valid", max_memory_bytes),
            test=_read_split(file, "test", max_memory_bytes),
        )


def _check_fresh(path: Path, split: FreshSplit) -> None:
    """Refuse a file of which no fresh overlay can be drawn: by hand, a spec can be given any bounds."""
    try:
        check_overlap(split.spec, split.pool, "train", least_accepted=0)
    except DataError as error:
        what = str(error).rpartition("; ")[0]
        raise DataError(f"{path}: no fresh overlays can be drawn from it ({what}); leave --fresh out") from error


def _read_split(file: OverlayFile, split: str, max_memory_bytes: int) -> Split:
    if file.num(split) * sum(row_bytes(field, file.spec) for field in SAMPLE_FIELDS) > max_memory_bytes:
        file.verify_samples(split)
        return StoredSplit(file.path, split)
    samples = file.read_split(split)
    return MemorySplit(torch.from_numpy(samples.images), torch.from_numpy(samples.labels))
