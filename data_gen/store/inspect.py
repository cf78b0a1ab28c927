"""Look at a dataset file as closely as can be: every rule of FORMAT.md, every sample, and what is in it in numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.composition import ABSENT, measure_overlap, merge_layers, paste_layers
from data_gen.counts import MAX_DIGITS
from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.digests import hash_samples
from data_gen.store.faults import Fault
from data_gen.store.format import pool_group
from data_gen.store.read import PARTS, OverlayFile, describe_changed_samples
from data_gen.store.values import check_sample_values
from data_gen.store.write import Progress
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, check_pool, synthesize

NUM_OVERLAP_BINS = 10


@dataclass
class SplitSummary:
    """What is in a split.

    Attributes:
        num_samples: in the file.
        by_count: samples with 1, 2, ... digits.
        by_class: samples that show each class.
        by_overlap: samples with two digits or more, by overlap: bins of equal width from 0 to 1.
        mean_overlap: over those samples; NaN if there are none.
        num_digits: source digits that the split draws from.
    """

    num_samples: int
    by_count: list[int]
    by_class: list[int]
    by_overlap: list[int]
    mean_overlap: float
    num_digits: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data; NaN becomes None."""
        values = vars(self).copy()
        values["mean_overlap"] = None if np.isnan(self.mean_overlap) else self.mean_overlap
        return values


@dataclass
class Inspection:
    """What a file is, and everything that is wrong with it; what could not be read is None."""

    path: Path
    faults: list[str] = field(default_factory=list)
    size_bytes: int = 0
    spec: OverlaySpec | None = None
    shard: str | None = None
    parts: list[str] = field(default_factory=list)
    digit_source_name: str | None = None
    digit_source_digest: str | None = None
    content_digest: str | None = None
    splits: dict[str, SplitSummary] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "faults": list(self.faults),
            "spec": None if self.spec is None else self.spec.to_dict(),
            "shard": self.shard,
            "parts": list(self.parts),
            "digit_source": self.digit_source_name,
            "digit_source_digest": self.digit_source_digest,
            "content_digest": self.content_digest,
            "splits": {split: summary.to_dict() for split, summary in self.splits.items()},
        }


def inspect_dataset(path: str | os.PathLike[str], progress: Progress | None = None) -> Inspection:
    """Check a file against every rule, and count what is in it. Memory does not grow with the number of samples.

    Every sample is drawn again from the spec and the file's own digits. Where one differs, its labels and provenance
    are checked against each other and its image is composed again, to tell what is wrong with it.

    Args:
        path: the file, whatever it is.
        progress: told about each block.

    Returns:
        What was found. A file without a fault has an empty list of them.
    """
    inspection = Inspection(Path(path))
    faults: list[Fault] = []
    try:
        file = OverlayFile(path, faults)
    except DataError as error:
        inspection.faults = [str(error).removeprefix(f"{path}: "), *map(str, faults)]
        return inspection
    with file:
        inspection.size_bytes = Path(path).stat().st_size
        inspection.spec, inspection.shard = file.spec, str(file.shard)
        inspection.parts = [str(part) for part in file.parts]
        inspection.digit_source_name = file.digit_source_name
        inspection.digit_source_digest = file.digit_source_digest
        inspection.content_digest = file.content_digest
        broken = {fault.where for fault in faults if fault.where}
        if PARTS in broken:
            broken |= {f"{split}/" for split in SPLITS}
        pools = {split: pool for split in SPLITS if (pool := _read_pool(file, split, broken, faults)) is not None}
        _check_pools_together(pools, faults)
        for split in SPLITS:
            if split in pools and not any(where.startswith(f"{split}/") for where in broken):
                summary = _Inspector(file, split, pools[split], faults).run(progress)
                if summary is not None:
                    inspection.splits[split] = summary
        if not broken:
            _check_digest(file, faults)
    inspection.faults = list(dict.fromkeys(map(str, faults)))
    return inspection


def _read_pool(file: OverlayFile, split: str, broken: set[str], faults: list[Fault]) -> DigitPool | None:
    group = pool_group(split)
    if any(where == group or where.startswith(f"{group}/") for where in broken):
        return None
    try:
        pool = file.read_pool(split)
        check_pool(file.spec, pool, split)
    except DataError as error:
        faults.append(_to_fault(error, file.path, group))
        return None
    return pool


def _check_pools_together(pools: dict[str, DigitPool], faults: list[Fault]) -> None:
    """No digit may be in the train and in the valid pool; those of the test pool are rows of another file."""
    if "train" in pools and "valid" in pools:
        num_shared = len(np.intersect1d(pools["train"].source_row, pools["valid"].source_row))
        if num_shared:
            faults.append(Fault(f"digits/train and digits/valid share {num_shared:,} digits", where="digits"))


def _check_digest(file: OverlayFile, faults: list[Fault]) -> None:
    try:
        file.verify_digest()
    except DataError as error:
        faults.append(_to_fault(error, file.path, ""))


class _Inspector:
    """Goes through the samples of one split."""

    def __init__(self, file: OverlayFile, split: str, pool: DigitPool, faults: list[Fault]) -> None:
        self.file, self.split, self.pool, self.faults = file, split, pool, faults
        self.spec = file.spec
        self.changed: list[tuple[int, int]] = []
        self.wrong: dict[str, list[int]] = {}
        self.by_count = np.zeros(MAX_DIGITS + 1, np.int64)
        self.by_class = np.zeros(self.spec.num_classes, np.int64)
        self.by_overlap = np.zeros(NUM_OVERLAP_BINS, np.int64)
        self.overlap_sum = 0.0

    def run(self, progress: Progress | None) -> SplitSummary | None:
        """Check and count all samples; None if they cannot be read."""
        num_samples = self.file.num(self.split)
        for start in range(0, num_samples, BLOCK_SIZE):
            stop = min(start + BLOCK_SIZE, num_samples)
            try:
                samples = self.file.read_samples(self.split, start, stop)
                digest = self.file.read_block_digests(self.split, start // BLOCK_SIZE, start // BLOCK_SIZE + 1)
            except DataError as error:
                self.faults.append(_to_fault(error, self.file.path, self.split))
                return None
            self._check(samples, start, digest.tobytes())
            self._count(samples)
            if progress is not None:
                progress(self.split, stop, num_samples)
        self.faults += [describe_changed_samples(self.split, start, stop) for start, stop in self.changed]
        self.faults += [self._describe(what, found) for what, found in self.wrong.items() if found]
        num_several = int(self.by_overlap.sum())
        return SplitSummary(
            num_samples=num_samples,
            by_count=self.by_count[1 : self.spec.max_digits + 1].tolist(),
            by_class=self.by_class.tolist(),
            by_overlap=self.by_overlap.tolist(),
            mean_overlap=self.overlap_sum / num_several if num_several else float("nan"),
            num_digits=len(self.pool.labels),
        )

    def _check(self, samples: SampleBlock, start: int, digest: bytes) -> None:
        stop = start + len(samples)
        if hash_samples(samples) != digest:
            if self.changed and self.changed[-1][1] == start:
                start_of_all = self.changed.pop()[0]
                self.changed.append((start_of_all, stop))
            else:
                self.changed.append((start, stop))
        first = self.file.first(self.split) + start
        try:
            drawn = synthesize(self.spec, self.pool, self.split, first, first + len(samples))
        except DataError as error:  # no draw has such an overlap
            self.faults.append(_to_fault(error, self.file.path, self.split))
            return
        differing = np.zeros(len(samples), bool)
        for name in (each.name for each in fields(SampleBlock)):
            differs = getattr(samples, name) != getattr(drawn, name)
            differing |= differs.reshape(len(samples), -1).any(axis=1)
        rows = np.flatnonzero(differing)
        if len(rows):
            self._explain(samples[rows], start + rows)

    def _explain(self, samples: SampleBlock, rows: NDArray[np.integer]) -> None:
        """Tell what is wrong with samples that differ from those that the spec draws."""
        found: list[Fault] = []
        check_sample_values(samples, self.spec, len(self.pool.labels), self.split, found)
        if found:
            self.faults += found
            return
        layers = paste_layers(self.spec, self.pool, samples.source_index, samples.offset_px)
        classes = self.pool.labels[samples.source_index].astype(np.int8)
        classes[samples.source_index == ABSENT] = ABSENT
        composed = merge_layers(self.spec, layers, (samples.digits != ABSENT).sum(axis=1))
        explained = np.zeros(len(rows), bool)
        for name, what, wrong in (
            ("digits", "has not the classes of the source digits", (classes != samples.digits).any(axis=1)),
            ("images", "is not what the digits make", (composed != samples.images).any(axis=(1, 2))),
            ("overlap", "is not that of the digits", measure_overlap(layers) != samples.overlap),
        ):
            self.wrong.setdefault(f"dataset {self.split}/{name} {what}", []).extend(rows[wrong].tolist())
            explained |= wrong
        what = f"{self.split} has overlays that the spec does not draw"
        self.wrong.setdefault(what, []).extend(rows[~explained].tolist())

    def _describe(self, what: str, rows: list[int]) -> Fault:
        total = self.file.num(self.split)
        return Fault(f"{what}: {len(rows):,} of {total:,} samples, the first is {rows[0]:,}", where=self.split)

    def _count(self, samples: SampleBlock) -> None:
        counts = np.clip((samples.digits != ABSENT).sum(axis=1), 0, MAX_DIGITS)
        self.by_count += np.bincount(counts, minlength=MAX_DIGITS + 1)
        self.by_class += (samples.labels > 0).sum(axis=0)
        overlap = samples.overlap[(counts > 1) & np.isfinite(samples.overlap)].clip(0, 1)
        self.by_overlap += np.histogram(overlap, NUM_OVERLAP_BINS, (0, 1))[0]
        self.overlap_sum += float(overlap.sum(dtype=np.float64))


def _to_fault(error: DataError, path: Path, where: str) -> Fault:
    what, _, remedy = str(error).removeprefix(f"{path}: ").rpartition("; ")
    return Fault(what or remedy, remedy, where=where)
