"""What a dataset file must look like, before any of its samples is read.

A file may come from anywhere. So only hard links are followed, only plain storage inside the file is read, and no size
is allocated that the file does not really hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from data_gen.sharding import Shard
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


def check_structure(file: Any, path: Path, header: Header, faults: list[Fault]) -> None:
    """Check that every dataset is there, inside the file, with the type, shape and size that the spec implies.

    Adds to `faults` what is not so, each naming its dataset.
    """
    spec = header.spec
    total_bytes = 0
    for split in SPLITS:
        num_samples = count_rows(spec, split, header.shard)
        for field in SAMPLE_FIELDS:
            name = f"{split}/{field.name}"
            if header.parts:
                _check_virtual(file, name, field, header, split, faults)
            else:
                total_bytes += _check_plain(file, name, field, spec, num_samples, faults)
        name = f"{split}/{BLOCK_DIGEST.name}"
        total_bytes += _check_plain(file, name, BLOCK_DIGEST, spec, count_blocks(num_samples), faults)
    for split in SPLITS:
        group = pool_group(split)
        # The first dataset of a pool says how many digits the pool has.
        first = _get_dataset(file, f"{group}/{POOL_FIELDS[0].name}", [])
        num_digits = first.shape[0] if first is not None and _is_plain(first) and first.shape else None
        for field in POOL_FIELDS:
            total_bytes += _check_plain(file, f"{group}/{field.name}", field, spec, num_digits, faults)
        if num_digits is not None and num_digits < MIN_POOL_DIGITS:
            faults.append(Fault(f"{group} has fewer than {MIN_POOL_DIGITS} digits", where=group))
    if total_bytes > path.stat().st_size:
        faults.append(Fault(f"its datasets claim {total_bytes:,} bytes, more than the whole file"))


def _check_plain(
    file: Any, name: str, field: Field, spec: OverlaySpec, num_rows: int | None, faults: list[Fault]
) -> int:
    """Check a dataset whose values are in the file, and return how many bytes it claims to have."""
    dataset = _get_dataset(file, name, faults)
    if dataset is None:
        return 0
    try:
        if not _is_plain(dataset):
            faults.append(Fault(f"the values of dataset {name} are in another file, not read from", where=name))
            return 0
        if dataset.dtype != np.dtype(field.dtype):
            faults.append(Fault(f"dataset {name} has type {dataset.dtype}, not {field.dtype[1:]}", where=name))
            return 0
        expected = (num_rows, *field.row_shape(spec))
        if num_rows is not None and dataset.shape != expected:
            faults.append(Fault(f"dataset {name} has shape {dataset.shape}, not {expected}", where=name))
            return 0
        faults.extend(Fault(what, where=name) for what in _list_storage_faults(dataset, name, row_bytes(field, spec)))
        return int(dataset.nbytes)
    except HDF5_ERRORS as error:
        faults.append(Fault(f"dataset {name} is damaged ({first_line(error)})", where=name))
        return 0


def _is_plain(dataset: Any) -> bool:
    """Say whether the values are in this file. Asked before anything else: HDF5 may open other files for a shape."""
    properties = dataset.id.get_create_plist()
    return not dataset.is_virtual and not properties.get_external_count()


def _list_storage_faults(dataset: Any, name: str, bytes_per_row: int) -> list[str]:
    if dataset.id.get_create_plist().get_nfilters():
        return [f"dataset {name} is compressed or filtered, not plain"]
    faults = []
    if dataset.chunks is not None:
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if dataset.chunks[1:] != dataset.shape[1:]:
            faults.append(f"dataset {name} has chunks that are not whole rows")
        if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
            bounds = f"{MIN_CHUNK_BYTES:,} to {MAX_CHUNK_BYTES:,}"
            faults.append(f"dataset {name} has chunks of {chunk_bytes:,} bytes, not of {bounds}")
    elif dataset.shape[0] * bytes_per_row >= MIN_CHUNK_BYTES:
        faults.append(f"dataset {name} has no chunks")
    stored_bytes = dataset.id.get_storage_size()
    if stored_bytes < dataset.nbytes:
        faults.append(f"dataset {name} holds {stored_bytes:,} of {dataset.nbytes:,} bytes")
    return faults


def _check_virtual(file: Any, name: str, field: Field, header: Header, split: str, faults: list[Fault]) -> None:
    """Check that a virtual dataset is just what the list of parts implies. Its values are never read through it."""
    dataset = _get_dataset(file, name, faults)
    if dataset is None:
        return
    try:
        if not dataset.is_virtual:
            faults.append(Fault(f"dataset {name} is not virtual, though the file refers to parts", where=name))
            return
        properties = dataset.id.get_create_plist()
        found = [
            (properties.get_virtual_filename(i), properties.get_virtual_dsetname(i), _get_bounds(properties, i))
            for i in range(properties.get_virtual_count())
        ]
        if found != list_virtual_sources(header.spec, header.parts, split, field):
            what = f"dataset {name} does not refer to the parts in their order"
            faults.append(Fault(what, "merge the parts again", where=name))
        elif dataset.dtype != np.dtype(field.dtype):
            faults.append(Fault(f"dataset {name} has type {dataset.dtype}, not {field.dtype[1:]}", where=name))
        elif dataset.shape != (expected := (header.spec.num_samples(split), *field.row_shape(header.spec))):
            faults.append(Fault(f"dataset {name} has shape {dataset.shape}, not {expected}", where=name))
    except HDF5_ERRORS as error:
        faults.append(Fault(f"dataset {name} is damaged ({first_line(error)})", where=name))


Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def list_virtual_sources(
    spec: OverlaySpec, parts: Sequence[str], split: str, field: Field
) -> list[tuple[str, str, Bounds]]:
    """Return, for each part with samples of the split, its file, its dataset, and the first and last element there."""
    sources = []
    shape = field.row_shape(spec)
    for number, part in enumerate(parts, start=1):
        start, stop = Shard(number, len(parts)).cut(spec.num_samples(split))
        if stop > start:
            bounds = ((start, *[0] * len(shape)), (stop - 1, *(size - 1 for size in shape)))
            sources.append((part, f"/{split}/{field.name}", bounds))
    return sources


def _get_bounds(properties: Any, index: int) -> Bounds:
    low, high = properties.get_virtual_vspace(index).get_select_bounds()
    return tuple(map(int, low)), tuple(map(int, high))


def _get_dataset(file: Any, name: str, faults: list[Fault]) -> Any:
    """Return a dataset by hard links alone: a link out of the file could name any file of the reader's."""
    node = file
    parts = name.split("/")
    try:
        for depth, part in enumerate(parts, start=1):
            where = "/".join(parts[:depth])
            what = "dataset" if depth == len(parts) else "group"
            link = node.get(part, getlink=True)
            if link is None:
                faults.append(Fault(f"{what} {where} is missing", where=name))
                return None
            if not isinstance(link, h5py.HardLink):
                reason = f"{what} {where} is a link to elsewhere, which is not followed"
                faults.append(Fault(reason, where=name))
                return None
            node = node[part]
            if not isinstance(node, h5py.Dataset if what == "dataset" else h5py.Group):
                faults.append(Fault(f"{where} is not a {what}", where=name))
                return None
    except HDF5_ERRORS as error:
        faults.append(Fault(f"dataset {name} is damaged ({first_line(error)})", where=name))
        return None
    return node
