"""Names, types and shapes in the file: the one place that writer and reader share. FORMAT.md is its prose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from data_gen.sharding import WHOLE, Shard
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.synthesis import BLOCK_SIZE

FORMAT_NAME = "overlaycaps.overlay"
FORMAT_VERSION = 2
FORMAT_VERSION_DTYPE = "<i8"

PARTS_ATTRIBUTE = "parts"
"""Root attribute of a file that refers to parts."""

DIGEST_BYTES = 32
"""Of a sha256."""

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
    Field("labels", "|u1", lambda spec: (spec.num_classes,)),
    Field("digits", "|i1", lambda spec: (spec.max_digits,)),
    Field("source_index", "<i4", lambda spec: (spec.max_digits,)),
    Field("offset_px", "|i1", lambda spec: (spec.max_digits, 2)),
    Field("overlap", "<f4", lambda spec: ()),
)
"""Datasets of the group of a split; the names are those of `SampleBlock`."""

BLOCK_DIGEST = Field("block_digest", "|u1", lambda spec: (DIGEST_BYTES,))
"""Dataset of the group of a split with one row for each block of samples."""

POOL_FIELDS: tuple[Field, ...] = (
    Field("images", "|u1", lambda spec: (spec.digit_px, spec.digit_px)),
    Field("labels", "|u1", lambda spec: ()),
    Field("source_row", "<i4", lambda spec: ()),
)
"""Datasets of the group digits/<split>; the names are those of `DigitPool`."""


def pool_group(split: str) -> str:
    """Return the path of the group that holds a split's digit pool."""
    return f"digits/{split}"


def count_blocks(num_samples: int) -> int:
    """Return the number of blocks that so many samples make; the last may be smaller."""
    return -(-num_samples // BLOCK_SIZE)


def count_rows(spec: OverlaySpec, split: str, shard: Shard = WHOLE) -> int:
    """Return how many samples of a split a file holds."""
    start, stop = shard.cut(spec.num_samples(split))
    return stop - start


def choose_chunks(num_rows: int, row_bytes: int, row_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a dataset's chunk shape, or None (contiguous) for one smaller than the smallest chunk.

    A chunk is a power of two of whole rows, about 64 to 128 KiB, or the whole dataset where that is less. A
    chunk of one row is at most 64 KiB: canvases have at most 256 px.
    """
    if num_rows * row_bytes < MIN_CHUNK_BYTES:
        return None
    rows = 1 << max(0, (_TARGET_CHUNK_BYTES // row_bytes).bit_length() - 1)
    return (min(rows, num_rows), *row_shape)


def count_bytes(spec: OverlaySpec, num_digits: Mapping[str, int], shard: Shard = WHOLE) -> int:
    """Return the bytes of all values in a file, for pools of `num_digits` digits by split."""
    total = 0
    for split in SPLITS:
        num_samples = count_rows(spec, split, shard)
        total += num_samples * sum(row_bytes(field, spec) for field in SAMPLE_FIELDS)
        total += count_blocks(num_samples) * row_bytes(BLOCK_DIGEST, spec)
        total += num_digits[split] * sum(row_bytes(field, spec) for field in POOL_FIELDS)
    return total


def row_bytes(field: Field, spec: OverlaySpec) -> int:
    """Return the bytes of one row of a dataset."""
    return int(field.dtype[-1]) * math.prod(field.row_shape(spec))
