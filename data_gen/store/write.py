"""Write a dataset: pools and samples, block by block, to one HDF5 file that appears only when it is complete."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool, DigitSource, split_digits
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    POOL_FIELDS,
    SAMPLE_FIELDS,
    Field,
    choose_chunks,
    combine_digests,
    count_bytes,
    pool_group,
    row_bytes,
)
from data_gen.store.replace import check_target, replacing, reserve_space
from data_gen.synthesis import BLOCK_SIZE, check_pool, synthesize

Progress = Callable[[str, int, int], None]
"""Called with (split, samples written, samples in total) after every block."""


@dataclass(frozen=True)
class DatasetInfo:
    """What was written: the file, its spec, its digests and its size."""

    path: Path
    spec: OverlaySpec
    digit_source_name: str
    digit_source_digest: str
    content_digest: str
    size_bytes: int


def write_dataset(
    path: str | os.PathLike[str],
    spec: OverlaySpec,
    source: DigitSource,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> DatasetInfo:
    """Generate the dataset of `spec` from the digits of `source`, and write it to `path`.

    The same spec, source and library versions give the same bytes. Memory does not grow with the number of
    samples. The file is written under a temporary name and renamed at the end: after an error or an
    interrupt, `path` is as it was before.

    Args:
        path: the file; its folder must exist.
        spec: every choice; its digit_px must be the source's.
        source: the digits.
        force: replace an existing file.
        progress: told about each finished block.

    Raises:
        DataError: the file exists and `force` is false, it cannot be written, the disk has too little space,
            or the source does not suit the spec.
    """
    target = Path(path)
    check_target(target, force=force)  # before the digits are split: a typing error is told at once
    pools = split_digits(source, spec.seed)
    for split in SPLITS:
        check_pool(spec, pools[split], split)
    num_bytes = count_bytes(spec, {split: len(pool.labels) for split, pool in pools.items()})
    num_bytes += num_bytes // 100 + 4 * 2**20  # the last chunk of each dataset is stored whole
    with replacing(target, num_bytes, force=force) as temporary:
        # A lock that the file system does not offer is no reason to fail: nobody else knows the temporary name.
        with h5py.File(temporary, "w", locking="best-effort") as file:
            reserve_space(temporary, num_bytes)
            digests: dict[str, str] = {}
            for split in SPLITS:
                digests |= _write_samples(file, spec, pools[split], split, progress)
            for split in SPLITS:
                digests |= _write_pool(file, spec, pools[split], split)
            content_digest = combine_digests(spec, source.digest, digests)
            file.attrs["format"] = FORMAT_NAME
            file.attrs["format_version"] = FORMAT_VERSION
            file.attrs["spec"] = spec.to_json()
            file.attrs["digit_source"] = source.name
            file.attrs["digit_source_digest"] = source.digest
            file.attrs["content_digest"] = content_digest
            file.flush()
            size_bytes = file.id.get_filesize()
        os.truncate(temporary, size_bytes)
    return DatasetInfo(target, spec, source.name, source.digest, content_digest, size_bytes)


class _Column:
    """One dataset that is filled from the front, and hashed on the way."""

    def __init__(self, group: Any, field: Field, spec: OverlaySpec, num_rows: int) -> None:
        self._dtype = np.dtype(field.dtype)
        self._dataset = group.create_dataset(
            field.name,
            shape=(num_rows, *field.row_shape(spec)),
            dtype=self._dtype,
            chunks=choose_chunks(num_rows, row_bytes(field, spec), field.row_shape(spec)),
            track_times=False,  # times would make equal files differ
        )
        self._hash = hashlib.sha256()
        self._num_written = 0

    def append(self, values: NDArray[Any]) -> None:
        stored = np.ascontiguousarray(values, dtype=self._dtype)
        self._dataset[self._num_written : self._num_written + len(stored)] = stored
        self._hash.update(stored.data)
        self._num_written += len(stored)

    def digest(self) -> str:
        return self._hash.hexdigest()


def _write_samples(
    file: Any, spec: OverlaySpec, pool: DigitPool, split: str, progress: Progress | None
) -> dict[str, str]:
    num_samples = spec.num_samples(split)
    group = file.create_group(split)
    columns = {field.name: _Column(group, field, spec, num_samples) for field in SAMPLE_FIELDS}
    for start in range(0, num_samples, BLOCK_SIZE):
        stop = min(start + BLOCK_SIZE, num_samples)
        block = synthesize(spec, pool, split, start, stop)
        for name, column in columns.items():
            column.append(getattr(block, name))
        if progress is not None:
            progress(split, stop, num_samples)
    return {f"{split}/{name}": column.digest() for name, column in columns.items()}


def _write_pool(file: Any, spec: OverlaySpec, pool: DigitPool, split: str) -> dict[str, str]:
    group = file.create_group(pool_group(split))
    digests = {}
    for field in POOL_FIELDS:
        values = getattr(pool, field.name)
        column = _Column(group, field, spec, len(values))
        column.append(values)
        digests[f"{pool_group(split)}/{field.name}"] = column.digest()
    return digests
