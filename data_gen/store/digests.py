"""Digests: of a block of samples, of a pool of digits, and of a dataset as a whole.

The digest of a dataset is made of those of its blocks, so that parts of a dataset can be put together, and blocks be
made by several workers, without reading all samples again; and so that a damaged file tells where it is damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.sharding import WHOLE, Shard
from data_gen.spec import SPLITS
from data_gen.store.format import FORMAT_NAME, FORMAT_VERSION, POOL_FIELDS, SAMPLE_FIELDS, Field
from data_gen.synthesis import SampleBlock


def hash_samples(block: SampleBlock) -> bytes:
    """Return the sha256 of the values of a block: its fields one after the other, in C order, little-endian."""
    return _hash_fields(block, SAMPLE_FIELDS)


def hash_pool(pool: DigitPool) -> str:
    """Return the sha256, in hex, of the values of a pool of digits, likewise."""
    return _hash_fields(pool, POOL_FIELDS).hex()


def combine_digests(
    spec_json: str,
    source_digest: str,
    block_digests: Mapping[str, NDArray[np.uint8]],
    pool_digests: Mapping[str, str],
    shard: Shard = WHOLE,
) -> str:
    """Return the content digest: sha256, in hex, of lines of text that FORMAT.md lists.

    File layout, library versions and the digit source's name do not enter: equal contents have equal digests, be they
    in one file or in parts.

    Args:
        spec_json: the spec, as it is stored.
        source_digest: of the digit source.
        block_digests: by split, uint8 (blocks, 32).
        pool_digests: by split, in hex.
        shard: which part of the dataset the blocks are.
    """
    lines = [f"{FORMAT_NAME} {FORMAT_VERSION}", spec_json, source_digest]
    if shard != WHOLE:
        lines.append(f"shard {shard}")
    for split in SPLITS:
        lines.append(f"{split} {hashlib.sha256(np.ascontiguousarray(block_digests[split]).data).hexdigest()}")
    lines += [f"digits/{split} {pool_digests[split]}" for split in SPLITS]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _hash_fields(values: object, fields: tuple[Field, ...]) -> bytes:
    digest = hashlib.sha256()
    for field in fields:
        digest.update(np.ascontiguousarray(getattr(values, field.name), dtype=field.dtype).data)
    return digest.digest()
