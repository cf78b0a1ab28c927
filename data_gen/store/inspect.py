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
from data_gen.digits import DigitPool, choose_valid
from data_gen.errors import DataError
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.digests import hash_pool, hash_samples
from data_gen.store.faults import Fault
from data_gen.store.format import BLOCK_DIGEST, pool_group
from data_gen.store.mappings import check_mappings
from data_gen.store.read import OverlayFile, describe_changed_samples
from data_gen.store.values import list_wrong_values
from data_gen.store.write import Progress
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, check_overlap, check_pool, synthesize

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
        file = OverlayFile(path, faults, check_parts=False)
    except DataError as error:
        inspection.faults = list(dict.fromkeys([str(error).removeprefix(f"{path}: "), *map(str, faults)]))
        return inspection
    with file:
        inspection.size_bytes = Path(path).stat().st_size
        inspection.spec, inspection.shard = file.spec, str(file.shard)
        inspection.parts = [str(part) for part in file.parts]
        inspection.digit_source_name = file.digit_source_name
        inspection.digit_source_digest = file.digit_source_digest
        inspection.content_digest = file.content_digest
        counts = {split: _Counts(file.num(split), np.zeros(file.spec.num_classes, np.int64)) for split in SPLITS}
        pools = _inspect_own(file, faults, counts, progress)
        if file.parts:
            faults += check_mappings(file.path, len(file.parts))
        pool_digests = {split: hash_pool(pool) for split, pool in pools.items()}
        for number in range(len(file.parts)):
            _inspect_part(file, number, pool_digests, faults, counts, progress)
        for split in SPLITS:
            if split in pools and counts[split].num_read == counts[split].num_samples:
                num_digits = len(pools[split].labels)
                inspection.splits[split] = counts[split].summarize(file.spec.max_digits, num_digits)
    inspection.faults = list(dict.fromkeys(map(str, faults)))
    return inspection


@dataclass
class _Counts:
    """What was counted of a split so far, in one part after the other."""

    num_samples: int
    by_class: NDArray[np.int64]
    num_read: int = 0
    by_count: NDArray[np.int64] = field(default_factory=lambda: np.zeros(MAX_DIGITS + 1, np.int64))
    by_overlap: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_OVERLAP_BINS, np.int64))
    overlap_sum: float = 0.0

    def add(self, samples: SampleBlock) -> None:
        counts = np.clip((samples.digits != ABSENT).sum(axis=1), 0, MAX_DIGITS)
        self.num_read += len(samples)
        self.by_count += np.bincount(counts, minlength=MAX_DIGITS + 1)
        self.by_class += (samples.labels > 0).sum(axis=0)
        overlap = samples.overlap[(counts > 1) & np.isfinite(samples.overlap)].clip(0, 1)
        self.by_overlap += np.histogram(overlap, NUM_OVERLAP_BINS, (0, 1))[0]
        self.overlap_sum += float(overlap.sum(dtype=np.float64))

    def summarize(self, max_digits: int, num_digits: int) -> SplitSummary:
        num_several = int(self.by_overlap.sum())
        return SplitSummary(
            num_samples=self.num_samples,
            by_count=self.by_count[1 : max_digits + 1].tolist(),
            by_class=self.by_class.tolist(),
            by_overlap=self.by_overlap.tolist(),
            mean_overlap=self.overlap_sum / num_several if num_several else float("nan"),
            num_digits=num_digits,
        )


def _inspect_own(
    file: OverlayFile, faults: list[Fault], counts: dict[str, _Counts], progress: Progress | None
) -> dict[str, DigitPool]:
    """Check what is in the file itself, whose structure gave `faults`; return the digits that could be read."""
    broken = {fault.where for fault in faults if fault.where}

    def is_sound(group: str) -> bool:
        return not any(where == group or where.startswith(f"{group}/") for where in broken)

    pools: dict[str, DigitPool] = {}
    drawn_from: set[str] = set()
    for split in SPLITS:
        if not is_sound(pool_group(split)):
            continue
        found: list[Fault] = []
        try:
            pools[split] = file.read_pool(split, found)
            check_pool(file.spec, pools[split], split)
            if not found:
                # No draw may have such an overlap; that is told once, and no draw is waited for.
                check_overlap(file.spec, pools[split], split, least_accepted=0)
                drawn_from.add(split)
        except DataError as error:
            found.append(_to_fault(error, file.path, pool_group(split)))
        faults += found
    _check_pools_together(pools, file.spec, faults)
    for split in SPLITS:
        if not file.parts and is_sound(split):
            pool, can_draw = pools.get(split), split in drawn_from
            _Inspector(file, split, pool, can_draw, faults, counts[split]).run(progress)
    if not broken and file.content_digest and file.digit_source_digest:
        try:
            file.verify_digest()
        except DataError as error:
            faults.append(_to_fault(error, file.path, ""))
    return pools


def _inspect_part(
    whole: OverlayFile,
    number: int,
    pool_digests: dict[str, str],
    faults: list[Fault],
    counts: dict[str, _Counts],
    progress: Progress | None,
) -> None:
    """Check a part as a file of its own, and that it is the part that the whole was made of."""
    found: list[Fault] = []
    name = whole.parts[number].relative_to(whole.path.parent).as_posix()
    try:
        with whole.open_part(number, found) as part:
            broken = {fault.where for fault in found if fault.where}
            own = _inspect_own(part, found, counts, progress)
            for split in SPLITS:
                if split in own and split in pool_digests and hash_pool(own[split]) != pool_digests[split]:
                    found.append(Fault(f"{pool_group(split)} differs from that of the whole", "merge the parts again"))
                if f"{split}/{BLOCK_DIGEST.name}" not in broken:
                    _compare_digests(whole, part, split, found)
    except DataError as error:
        fault = _to_fault(error, whole.path, "")
        prefix = "" if fault.what.startswith("its part ") else f"its part {name}: "
        what = fault.what.removeprefix(f"{whole.parts[number]}: ")
        faults.append(Fault(prefix + what, fault.remedy))
    faults += [Fault(f"its part {name}: {fault.what}", fault.remedy, fault.where) for fault in found]


def _compare_digests(whole: OverlayFile, part: OverlayFile, split: str, faults: list[Fault]) -> None:
    """Compare the digests that a part has of its blocks with those that the whole has of them."""
    first = part.first(split) // BLOCK_SIZE
    own = part.read_block_digests(split)
    try:
        others = whole.read_block_digests(split, first, first + len(own))
    except DataError:  # it is damaged, which was told
        return
    if not np.array_equal(own, others):
        what = f"dataset {split}/{BLOCK_DIGEST.name} differs from that of the whole"
        faults.append(Fault(what, "merge the parts again"))


def _check_pools_together(pools: dict[str, DigitPool], spec: OverlaySpec, faults: list[Fault]) -> None:
    """Check that each digit is in the pool that the seed puts it in; the test pool's are rows of another file."""
    if "test" in pools and not _is_counted(pools["test"].source_row):
        faults.append(Fault("dataset digits/test/source_row has not all rows in their order", where="digits/test"))
    if "train" not in pools or "valid" not in pools:
        return
    rows = {split: pools[split].source_row for split in ("train", "valid")}
    num_shared = len(np.intersect1d(rows["train"], rows["valid"]))
    if num_shared:
        faults.append(Fault(f"digits/train and digits/valid share {num_shared:,} digits", where="digits"))
        return
    both = np.concatenate([rows["train"], rows["valid"]])
    order = np.argsort(both, kind="stable")
    is_complete = _is_counted(both[order])
    labels = np.concatenate([pools["train"].labels, pools["valid"].labels])[order]
    is_valid = choose_valid(labels, spec.seed)
    expected = {"train": np.flatnonzero(~is_valid), "valid": np.flatnonzero(is_valid)}
    if not is_complete or any(not np.array_equal(rows[split], expected[split]) for split in rows):
        what = "digits/train and digits/valid are not divided as the seed divides all training digits"
        faults.append(Fault(what, where="digits"))


def _is_counted(rows: NDArray[np.int32]) -> bool:
    return np.array_equal(rows, np.arange(len(rows)))


class _Inspector:
    """Goes through the samples of one split in one file."""

    def __init__(
        self,
        file: OverlayFile,
        split: str,
        pool: DigitPool | None,
        can_draw: bool,
        faults: list[Fault],
        counts: _Counts,
    ) -> None:
        self.file, self.split, self.pool, self.can_draw = file, split, pool, can_draw
        self.faults, self.counts = faults, counts
        self.spec = file.spec
        self.num_pool = np.iinfo(np.int32).max if pool is None else len(pool.labels)
        self.changed: list[tuple[int, int]] = []
        self.wrong: dict[tuple[str, str], list[int]] = {}

    def run(self, progress: Progress | None) -> None:
        """Check and count all samples that can be read."""
        num_samples = self.file.num(self.split)
        for start in range(0, num_samples, BLOCK_SIZE):
            stop = min(start + BLOCK_SIZE, num_samples)
            try:
                samples = self.file.read_samples(self.split, start, stop)
                digest = self.file.read_block_digests(self.split, start // BLOCK_SIZE, start // BLOCK_SIZE + 1)
            except DataError as error:
                self.faults.append(_to_fault(error, self.file.path, self.split))
                continue
            self._compare_digest(samples, start, digest.tobytes())
            self._check(samples, start)
            self.counts.add(samples)
            if progress is not None:
                progress(self.split, self.counts.num_read, self.counts.num_samples)
        self.faults += [describe_changed_samples(self.split, start, stop) for start, stop in self.changed]
        self.faults += [self._describe(what, where, found) for (what, where), found in self.wrong.items()]

    def _compare_digest(self, samples: SampleBlock, start: int, digest: bytes) -> None:
        if hash_samples(samples) == digest:
            return
        stop = start + len(samples)
        if self.changed and self.changed[-1][1] == start:
            start = self.changed.pop()[0]
        self.changed.append((start, stop))

    def _check(self, samples: SampleBlock, start: int) -> None:
        drawn = None
        if self.pool is not None and self.can_draw:
            first = self.file.first(self.split) + start
            try:
                drawn = synthesize(self.spec, self.pool, self.split, first, first + len(samples))
            except DataError as error:
                self.faults.append(_to_fault(error, self.file.path, self.split))
                self.can_draw = False  # the next block would take as long to fail
        if drawn is None:
            self._explain(samples, start + np.arange(len(samples)), is_drawn=False)
            return
        differing = np.zeros(len(samples), bool)
        for name in (each.name for each in fields(SampleBlock)):
            # As bytes: -0.0 is not 0.0 here.
            mine, others = (
                np.ascontiguousarray(getattr(block, name)).view(np.uint8).reshape(len(samples), -1)
                for block in (samples, drawn)
            )
            differing |= (mine != others).any(axis=1)
        rows = np.flatnonzero(differing)
        if len(rows):
            self._explain(samples[rows], start + rows, is_drawn=True)

    def _explain(self, samples: SampleBlock, rows: NDArray[np.integer], *, is_drawn: bool) -> None:
        """Tell what is wrong with samples, which differ from those that the spec draws if `is_drawn`."""
        possible = np.ones(len(rows), bool)
        for fault, wrong in list_wrong_values(samples, self.spec, self.num_pool, self.split):
            self._add(fault.what, fault.where, rows[wrong])
            possible &= ~wrong
        if self.pool is None or not possible.any():
            return
        samples, rows = samples[np.flatnonzero(possible)], rows[possible]
        layers = paste_layers(self.spec, self.pool, samples.source_index, samples.offset_px)
        classes = self.pool.labels[samples.source_index].astype(np.int16)
        classes[samples.source_index == ABSENT] = ABSENT
        composed = merge_layers(self.spec, layers, (samples.digits != ABSENT).sum(axis=1))
        overlap = measure_overlap(layers)
        explained = np.zeros(len(rows), bool)
        for name, what, wrong in (
            ("digits", "has not the classes of the source digits", (classes != samples.digits).any(axis=1)),
            ("images", "is not what the digits make", (composed != samples.images).any(axis=(1, 2))),
            ("overlap", "is not that of the digits", overlap.view(np.uint32) != samples.overlap.view(np.uint32)),
        ):
            self._add(f"dataset {self.split}/{name} {what}", f"{self.split}/{name}", rows[wrong])
            explained |= wrong
        if is_drawn:
            self._add(f"{self.split} has overlays that the spec does not draw", self.split, rows[~explained])

    def _add(self, what: str, where: str, rows: NDArray[np.integer]) -> None:
        if len(rows):
            self.wrong.setdefault((what, where), []).extend(rows.tolist())

    def _describe(self, what: str, where: str, rows: list[int]) -> Fault:
        total = self.file.num(self.split)
        return Fault(f"{what}: {len(rows):,} of {total:,} samples, the first is {rows[0]:,}", where=where)


def _to_fault(error: DataError, path: Path, where: str) -> Fault:
    what, _, remedy = str(error).removeprefix(f"{path}: ").rpartition("; ")
    return Fault(what or remedy, remedy, where=where)
