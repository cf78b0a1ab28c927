"""Names, types and shapes in the file: the one place that writer and reader share. FORMAT.md is its prose."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from data_gen.spec import MAX_DIGITS, NUM_CLASSES, SPLITS, OverlaySpec

FORMAT_NAME = "overlaycaps.overlay"
FORMAT_VERSION = 1

MIN_CHUNK_BYTES = 10 * 1024
MAX_CHUNK_BYTES = 1024 * 1024
_TARGET_CHUNK_BYTES = 128 * 1024
"""A chunk is what one random read costs; small enough for shuffled reads, large enough for sequential ones."""

MIN_POOL_DIGITS = 2


@dataclass(frozen=True)
class Field:
    """One dataset of a group: its name, its type as HDF5 stores it, and the shape of one row for a spec."""

    name: str
    dtype: str
    row_shape: Callable[[OverlaySpec], tuple[int, ...]]


SAMPLE_FIELDS: tuple[Field, ...] = (
    Field("images", "|u1", lambda spec: (spec.canvas_px, spec.canvas_px)),
    Field("labels", "|u1", lambda spec: (NUM_CLASSES,)),
    Field("digits", "|i1", lambda spec: (MAX_DIGITS,)),
    Field("source_index", "<i4", lambda spec: (MAX_DIGITS,)),
    Field("offset_px", "|i1", lambda spec: (MAX_DIGITS, 2)),
    Field("overlap", "<f4", lambda spec: ()),
)
"""Datasets of the group of a split; the names are those of `SampleBlock`."""

POOL_FIELDS: tuple[Field, ...] = (
    Field("images", "|u1", lambda spec: (spec.digit_px, spec.digit_px)),
    Field("labels", "|u1", lambda spec: ()),
    Field("source_row", "<i4", lambda spec: ()),
)
"""Datasets of the group digits/<split>; the names are those of `DigitPool`."""


def list_datasets() -> list[tuple[str, Field]]:
    """Return the path and field of every dataset in the file, in the order of the content digest."""
    samples = [(f"{split}/{field.name}", field) for split in SPLITS for field in SAMPLE_FIELDS]
    pools = [(f"{pool_group(split)}/{field.name}", field) for split in SPLITS for field in POOL_FIELDS]
    return samples + pools


def pool_group(split: str) -> str:
    """Return the path of the group that holds a split's digit pool."""
    return f"digits/{split}"


def choose_chunks(num_rows: int, row_bytes: int, row_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a dataset's chunk shape, or None (contiguous) for one smaller than the smallest chunk.

    A chunk is a power of two of whole rows, about 64 to 128 KiB, or the whole dataset where that is less. A
    chunk of one row is at most 64 KiB: canvases have at most 256 px.
    """
    if num_rows * row_bytes < MIN_CHUNK_BYTES:
        return None
    rows = 1 << max(0, (_TARGET_CHUNK_BYTES // row_bytes).bit_length() - 1)
    return (min(rows, num_rows), *row_shape)


def combine_digests(spec: OverlaySpec, source_digest: str, dataset_digests: Mapping[str, str]) -> str:
    """Return the content digest: sha256, in hex, of these lines of text.

    The format name and version; the spec as JSON; the digit source's digest; then, for each of
    `list_datasets`, its path and the sha256 of its values (C order, little-endian). File layout, library
    versions and the digit source's name do not enter: equal contents have equal digests.
    """
    lines = [f"{FORMAT_NAME} {FORMAT_VERSION}", spec.to_json(), source_digest]
    lines += [f"{path} {dataset_digests[path]}" for path, _ in list_datasets()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def count_bytes(spec: OverlaySpec, num_digits: Mapping[str, int]) -> int:
    """Return the bytes of all values in the file, for pools of `num_digits` digits by split."""
    total = 0
    for split in SPLITS:
        total += spec.num_samples(split) * sum(row_bytes(field, spec) for field in SAMPLE_FIELDS)
        total += num_digits[split] * sum(row_bytes(field, spec) for field in POOL_FIELDS)
    return total


def row_bytes(field: Field, spec: OverlaySpec) -> int:
    """Return the bytes of one row of a dataset."""
    return int(field.dtype[-1]) * math.prod(field.row_shape(spec))
