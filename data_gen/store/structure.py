"""What a dataset file must look like, before any of its samples is read.

A file may come from anywhere. So only hard links are followed, only plain storage inside the file is read, and no size
is allocated that the file does not really hold.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.faults import HDF5_ERRORS, Fault, first_line
from data_gen.store.format import (
    BLOCK_DIGEST,
    MAX_CHUNK_BYTES,
    MIN_CHUNK_BYTES,
    MIN_POOL_DIGITS,
    POOL_FIELDS,
    SAMPLE_FIELDS,
    Field,
    count_blocks,
    count_rows,
    pool_group,
    row_bytes,
)
from data_gen.store.header import Header


def check_structure(file: Any, path: Path, header: Header | None, faults: list[Fault]) -> None:
    """Check that every dataset is there, inside the file, with the type, shape and size that the spec implies.

    Virtual datasets are not opened here, but by `mappings`: what they refer to lies in a heap without checksums.

    Args:
        file: the open file.
        path: of the file.
        header: of the file; None if it cannot be read, and then shapes are not checked.
        faults: what is wrong is added there, each naming its dataset.
    """
    spec = None if header is None else header.spec
    holds_samples = header is not None and not header.parts
    total_bytes = 0
    for split in SPLITS:
        num_samples = None if header is None else count_rows(header.spec, split, header.shard)
        for field in SAMPLE_FIELDS:
            name = f"{split}/{field.name}"
            if holds_samples:
                total_bytes += _check_plain(file, name, field, spec, num_samples, faults)
            else:
                find_dataset(file, name, faults)
        num_blocks = None if num_samples is None else count_blocks(num_samples)
        total_bytes += _check_plain(file, f"{split}/{BLOCK_DIGEST.name}", BLOCK_DIGEST, spec, num_blocks, faults)
    for split in SPLITS:
        group = pool_group(split)
        num_digits = _count_digits(file, group)
        for field in POOL_FIELDS:
            total_bytes += _check_plain(file, f"{group}/{field.name}", field, spec, num_digits, faults)
        if num_digits is not None and num_digits < MIN_POOL_DIGITS:
            faults.append(Fault(f"{group} has fewer than {MIN_POOL_DIGITS} digits", where=group))
    if total_bytes > path.stat().st_size:
        faults.append(Fault(f"its datasets claim {total_bytes:,} bytes, more than the whole file"))


def _count_digits(file: Any, group: str) -> int | None:
    """Return how many digits a pool has, as the first of its datasets says; None if that one is not as it should be."""
    try:
        first = _open_dataset(file, f"{group}/{POOL_FIELDS[0].name}", [])
        is_usable = first is not None and _is_plain(first) and first.shape is not None and len(first.shape) == 3
        return int(first.shape[0]) if is_usable else None
    except HDF5_ERRORS:
        return None


def _check_plain(
    file: Any, name: str, field: Field, spec: OverlaySpec | None, num_rows: int | None, faults: list[Fault]
) -> int:
    """Check a dataset whose values are in the file, and return how many bytes it claims to have."""
    try:
        dataset = _open_dataset(file, name, faults)
        if dataset is None:
            return 0
        if not _is_plain(dataset):
            faults.append(Fault(f"the values of dataset {name} are in another file, not read from", where=name))
            return 0
        found = _list_type_and_shape_faults(dataset, name, field, spec, num_rows)
        if not found and spec is not None:
            found = _list_storage_faults(dataset, name, row_bytes(field, spec))
        faults.extend(Fault(what, where=name) for what in found)
        return int(dataset.size or 0) * int(dataset.dtype.itemsize)
    except HDF5_ERRORS as error:
        faults.append(Fault(f"dataset {name} is damaged ({first_line(error)})", where=name))
        return 0


def _list_type_and_shape_faults(
    dataset: Any, name: str, field: Field, spec: OverlaySpec | None, num_rows: int | None
) -> list[str]:
    faults = []
    kind = dataset.id.get_type()
    # Compared as HDF5 has it: to NumPy, bit fields and other things are integers as well.
    if not kind.equal(h5py.h5t.py_create(np.dtype(field.dtype))):
        found = "of another class" if dataset.dtype == np.dtype(field.dtype) else str(dataset.dtype)
        faults.append(f"dataset {name} has type {found}, not {field.dtype[1:]}")
    if spec is not None:
        row_shape = field.row_shape(spec)
        expected = ("any" if num_rows is None else num_rows, *row_shape)
        shape = dataset.shape  # None for one that is made to have no values
        is_right = shape is not None and len(shape) == len(expected) and shape[1:] == row_shape
        if not is_right or (num_rows is not None and shape[0] != num_rows):
            shown = "(" + ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "") + ")"
            faults.append(f"dataset {name} has shape {dataset.shape}, not {shown}")
    return faults


def _is_plain(dataset: Any) -> bool:
    """Say whether the values are in this file. Asked before anything else: HDF5 may open other files for a shape."""
    properties = dataset.id.get_create_plist()
    return not dataset.is_virtual and not properties.get_external_count()


def _list_storage_faults(dataset: Any, name: str, bytes_per_row: int) -> list[str]:
    faults = []
    properties = dataset.id.get_create_plist()
    if properties.get_nfilters():
        return [f"dataset {name} is compressed or filtered, not plain"]
    is_large = dataset.shape[0] * bytes_per_row >= MIN_CHUNK_BYTES
    if is_large and dataset.chunks is None:
        faults.append(f"dataset {name} has no chunks")
    elif not is_large and properties.get_layout() != h5py.h5d.CONTIGUOUS:
        faults.append(f"dataset {name} is smaller than {MIN_CHUNK_BYTES:,} bytes and not contiguous")
    elif dataset.chunks is not None:
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if dataset.chunks[1:] != dataset.shape[1:]:
            faults.append(f"dataset {name} has chunks that are not whole rows")
        if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
            bounds = f"{MIN_CHUNK_BYTES:,} to {MAX_CHUNK_BYTES:,}"
            faults.append(f"dataset {name} has chunks of {chunk_bytes:,} bytes, not of {bounds}")
    stored_bytes = dataset.id.get_storage_size()
    if stored_bytes < dataset.nbytes:
        faults.append(f"dataset {name} holds {stored_bytes:,} of {dataset.nbytes:,} bytes")
    return faults


def find_dataset(file: Any, name: str, faults: list[Fault]) -> Any:
    """Return the group that has a dataset, which is not opened, or None and add to `faults` why there is none.

    Goes by hard links alone: a link out of the file could name any file of the reader's.
    """
    node = file
    parts = name.split("/")
    try:
        for depth, part in enumerate(parts, start=1):
            where = "/".join(parts[:depth])
            is_last = depth == len(parts)
            what = "dataset" if is_last else "group"
            link = node.get(part, getlink=True)
            if link is None:
                faults.append(Fault(f"{what} {where} is missing", where=name))
                return None
            if not isinstance(link, h5py.HardLink):
                reason = f"{what} {where} is a link to elsewhere, which is not followed"
                faults.append(Fault(reason, where=name))
                return None
            if is_last:
                return node
            node = node[part]
            if not isinstance(node, h5py.Group):
                faults.append(Fault(f"{where} is not a group", where=name))
                return None
    except HDF5_ERRORS as error:
        faults.append(Fault(f"dataset {name} is damaged ({first_line(error)})", where=name))
    return None


def _open_dataset(file: Any, name: str, faults: list[Fault]) -> Any:
    group = find_dataset(file, name, faults)
    if group is None:
        return None
    dataset = group[name.rpartition("/")[2]]
    if not isinstance(dataset, h5py.Dataset):
        faults.append(Fault(f"{name} is not a dataset", where=name))
        return None
    return dataset
