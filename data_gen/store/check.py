"""What a dataset file must look like; everything that it declares is checked before it is believed.

A file may come from anywhere. So only hard links are followed, only plain storage inside the file is read,
and no size is allocated that the file does not really hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.spec import MAX_DIGITS, NUM_CLASSES, SPLITS, OverlaySpec
from data_gen.store.format import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MAX_CHUNK_BYTES,
    MIN_POOL_DIGITS,
    list_datasets,
    pool_group,
)
from data_gen.synthesis import ABSENT, SampleBlock

_AGAIN = "generate the file again"
HDF5_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError)
"""What h5py raises on a damaged file."""


@dataclass(frozen=True)
class Header:
    """The root attributes of a file."""

    spec: OverlaySpec
    digit_source_name: str
    digit_source_digest: str
    content_digest: str


def read_header(file: Any, path: Path) -> Header:
    """Return the root attributes of an open file.

    Raises:
        DataError: another program's file, a newer version, or an attribute is missing or invalid.
    """
    name = file.attrs.get("format")
    if not isinstance(name, str) or name != FORMAT_NAME:
        raise DataError(f"{path}: an HDF5 file, but not one that `overlaycaps generate` wrote; give one it wrote")
    version = int(_read_attribute(file, path, "format_version", np.integer))
    if version > FORMAT_VERSION:
        raise DataError(
            f"{path}: has format version {version}, this program reads up to {FORMAT_VERSION}; upgrade overlaycaps"
        )
    if version < 1:
        raise DataError(f"{path}: has format version {version}, which does not exist; {_AGAIN}")
    text = _read_attribute(file, path, "spec", str)
    try:
        spec = OverlaySpec.from_json(text)
    except DataError as error:
        raise DataError(f"{path}: its spec is refused: {error}") from None
    return Header(
        spec=spec,
        digit_source_name=_read_attribute(file, path, "digit_source", str),
        digit_source_digest=_read_attribute(file, path, "digit_source_digest", str),
        content_digest=_read_attribute(file, path, "content_digest", str),
    )


def _read_attribute(file: Any, path: Path, name: str, kind: type) -> Any:
    try:
        value = file.attrs[name]
    except HDF5_ERRORS:
        raise DataError(f"{path}: the attribute {name} is missing or damaged; {_AGAIN}") from None
    if not isinstance(value, kind):
        raise DataError(f"{path}: the attribute {name} has the wrong type ({type(value).__name__}); {_AGAIN}")
    return value


def check_structure(file: Any, path: Path, spec: OverlaySpec) -> None:
    """Check that every dataset is there, inside the file, with the type, shape and size that the spec
    implies.

    Raises:
        DataError: one is not; the message names it.
    """
    total_bytes = 0
    num_rows = {split: spec.num_samples(split) for split in SPLITS}
    for name, field in list_datasets():
        dataset = _get_dataset(file, path, name)
        if dataset.dtype != np.dtype(field.dtype):
            raise DataError(f"{path}: dataset {name} has type {dataset.dtype}, not {field.dtype[1:]}; {_AGAIN}")
        group = name.rpartition("/")[0]
        if group not in num_rows:  # the first dataset of a pool says how many digits the pool has
            num_rows[group] = dataset.shape[0] if dataset.ndim else 0
        expected = (num_rows[group], *field.row_shape(spec))
        if dataset.shape != expected:
            raise DataError(f"{path}: dataset {name} has shape {dataset.shape}, not {expected}; {_AGAIN}")
        _check_storage(dataset, path, name)
        total_bytes += dataset.nbytes
    for split in SPLITS:
        if num_rows[pool_group(split)] < MIN_POOL_DIGITS:
            raise DataError(f"{path}: {pool_group(split)} has fewer than {MIN_POOL_DIGITS} digits; {_AGAIN}")
    if total_bytes > path.stat().st_size:
        raise DataError(f"{path}: its datasets claim {total_bytes:,} bytes, more than the whole file; {_AGAIN}")


def _get_dataset(file: Any, path: Path, name: str) -> Any:
    """Return a dataset by hard links alone: a link out of the file could name any file of the reader's."""
    node = file
    parts = name.split("/")
    for depth, part in enumerate(parts, start=1):
        where = "/".join(parts[:depth])
        what = "dataset" if depth == len(parts) else "group"
        link = node.get(part, getlink=True)
        if link is None:
            raise DataError(f"{path}: {what} {where} is missing; {_AGAIN}")
        if not isinstance(link, h5py.HardLink):
            raise DataError(f"{path}: {what} {where} is a link to elsewhere, which is not followed; {_AGAIN}")
        node = node[part]
        if not isinstance(node, h5py.Dataset if what == "dataset" else h5py.Group):
            raise DataError(f"{path}: {where} is not a {what}; {_AGAIN}")
    return node


def _check_storage(dataset: Any, path: Path, name: str) -> None:
    properties = dataset.id.get_create_plist()
    if dataset.is_virtual or properties.get_external_count():
        raise DataError(f"{path}: the values of dataset {name} are in another file, not read from; {_AGAIN}")
    if properties.get_nfilters():
        raise DataError(f"{path}: dataset {name} is compressed or filtered, not plain; {_AGAIN}")
    if dataset.chunks is not None and math.prod(dataset.chunks) * dataset.dtype.itemsize > MAX_CHUNK_BYTES:
        raise DataError(f"{path}: dataset {name} has chunks of more than {MAX_CHUNK_BYTES:,} bytes; {_AGAIN}")
    stored_bytes = dataset.id.get_storage_size()
    if stored_bytes < dataset.nbytes:
        raise DataError(f"{path}: dataset {name} holds {stored_bytes:,} of {dataset.nbytes:,} bytes; {_AGAIN}")


def check_sample_values(samples: SampleBlock, spec: OverlaySpec, num_pool: int, path: Path, split: str) -> None:
    """Check that a split's labels and provenance are in range and agree with each other.

    Raises:
        DataError: they do not; the message names the dataset.
    """
    digits, index, offset = samples.digits, samples.source_index, samples.offset_px
    present = digits != ABSENT
    _require(np.all((digits >= ABSENT) & (digits < NUM_CLASSES)), path, f"{split}/digits")
    _require(np.all(present[:, 0]), path, f"{split}/digits")
    _require(np.all((index >= ABSENT) & (index < num_pool)), path, f"{split}/source_index")
    _require(np.array_equal(index != ABSENT, present), path, f"{split}/source_index")
    _require(np.all(np.abs(offset.astype(np.int16)) <= spec.max_shift_px), path, f"{split}/offset_px")
    overlap = samples.overlap
    _require(np.all((overlap >= 0) & (overlap <= 1)), path, f"{split}/overlap")  # also false for NaN
    expected = np.zeros_like(samples.labels)
    for place in range(MAX_DIGITS):
        rows = np.flatnonzero(present[:, place])
        expected[rows, digits[rows, place]] = 1
    _require(np.array_equal(samples.labels, expected), path, f"{split}/labels")
    _require(np.array_equal(expected.sum(axis=1), present.sum(axis=1)), path, f"{split}/digits")


def check_pool_values(pool: DigitPool, path: Path, group: str) -> None:
    """Check that a pool's labels are digits of at least two classes.

    Raises:
        DataError: they are not; the message names the dataset.
    """
    labels: NDArray[np.uint8] = pool.labels
    _require(labels.max() < NUM_CLASSES and labels.min() < labels.max(), path, f"{group}/labels")
    _require(pool.source_row.min() >= 0, path, f"{group}/source_row")


def _require(valid: object, path: Path, name: str) -> None:
    if not valid:
        raise DataError(f"{path}: dataset {name} holds impossible values; {_AGAIN}")
