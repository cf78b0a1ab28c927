"""Write a dataset: samples, block by block, and pools, to one HDF5 file that appears only when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from data_gen.digits import DigitPool, DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.parallel import map_in_order
from data_gen.sharding import WHOLE, Shard
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.digests import combine_digests, hash_pool, hash_samples
from data_gen.store.format import (
    BLOCK_DIGEST,
    DIGEST_BYTES,
    FORMAT_NAME,
    FORMAT_VERSION,
    FORMAT_VERSION_DTYPE,
    POOL_FIELDS,
    SAMPLE_FIELDS,
    count_blocks,
    count_bytes,
    count_rows,
    pool_group,
)
from data_gen.store.hdf5 import Column, create_file, create_group, write_text
from data_gen.store.read import open_dataset
from data_gen.store.replace import check_target, remove_stale, replacing, reserve_space
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, check_overlap, check_pool, synthesize

Progress = Callable[[str, int, int], None]
"""Called with (split, samples written, samples in total) after every block."""

Block = tuple[str, SampleBlock, bytes]
"""A split, the next samples of it, and their digest."""


@dataclass(frozen=True)
class DatasetInfo:
    """A file that was written, or was there already: its spec, its place in the dataset, its digests and its size."""

    path: Path
    spec: OverlaySpec
    shard: Shard
    digit_source_name: str
    digit_source_digest: str
    content_digest: str
    size_bytes: int
    was_there: bool = False


@dataclass(frozen=True)
class Contents:
    """What goes into a file; `blocks` are of `BLOCK_SIZE` samples, a split's last may be smaller, splits in order."""

    spec: OverlaySpec
    shard: Shard
    digit_source_name: str
    digit_source_digest: str
    pools: Mapping[str, DigitPool]
    blocks: Generator[Block, None, None]


def write_dataset(
    path: str | os.PathLike[str],
    spec: OverlaySpec,
    source: DigitSource,
    *,
    shard: Shard | None = None,
    num_workers: int = 1,
    force: bool = False,
    progress: Progress | None = None,
) -> DatasetInfo:
    """Generate the dataset of `spec`, or one shard of it, from the digits of `source`, and write it to `path`.

    The same spec, source, shard and library versions give the same bytes, whatever the number of workers. Memory
    does not grow with the number of samples. The file is written under a temporary name and renamed at the end: after
    an error or an interrupt, `path` is as it was before. A job of many shards can be given again after an interruption.

    Args:
        path: the file; its folder must exist.
        spec: every choice; its digit_px and class_names must be the source's.
        source: the digits.
        shard: which part of the dataset to write; one that is there already is kept. None: the whole dataset.
        num_workers: threads that make samples.
        force: replace an existing file.
        progress: told about each finished block.

    Raises:
        DataError: the file exists and `force` is false, it cannot be written, the disk has too little space,
            or the source does not suit the spec.
    """
    target = Path(path)
    if shard is not None and not force and target.is_file():
        return _keep_finished(target, spec, source, shard)
    part = WHOLE if shard is None else shard
    check_target(target, force=force)  # before the digits are split: a typing error is told at once
    if source.class_names != spec.class_names:
        raise DataError(f"the spec names {spec.num_classes} classes, and not those of {source.name}; adapt the spec")
    pools = split_digits(source, spec.seed)
    for split in SPLITS:
        check_pool(spec, pools[split], split)
        check_overlap(spec, pools[split], split)
    tasks = (
        (split, first, min(first + BLOCK_SIZE, stop))
        for split in SPLITS
        for start, stop in [part.cut(spec.num_samples(split))]
        for first in range(start, stop, BLOCK_SIZE)
    )
    blocks = map_in_order(partial(_make_block, spec, pools), tasks, num_workers)
    contents = Contents(spec, part, source.name, source.digest, pools, blocks)
    try:
        return write_file(target, contents, force=force, progress=progress)
    except DataError:
        if shard is not None and not force and target.is_file():  # another process was faster
            return _keep_finished(target, spec, source, shard)
        raise


def write_file(path: Path, contents: Contents, *, force: bool, progress: Progress | None = None) -> DatasetInfo:
    """Write a file whose samples are all in it; see `write_dataset`.

    Raises:
        DataError: as `write_dataset`, and whatever making the blocks raises.
    """
    spec, shard, pools = contents.spec, contents.shard, contents.pools
    num_bytes = count_bytes(spec, {split: len(pools[split].labels) for split in SPLITS}, shard)
    num_bytes += num_bytes // 100 + 4 * 2**20  # the last chunk of each dataset is stored whole
    with contextlib.closing(contents.blocks), replacing(path, num_bytes, force=force) as temporary:
        with create_file(temporary) as file:
            reserve_space(temporary, num_bytes)
            block_digests = _write_samples(file, contents, progress)
            write_pools(file, spec, pools)
            content_digest = combine_digests(
                spec.to_json(),
                contents.digit_source_digest,
                block_digests,
                {split: hash_pool(pools[split]) for split in SPLITS},
                shard,
            )
            write_attributes(
                file, spec, shard, contents.digit_source_name, contents.digit_source_digest, content_digest
            )
            file.flush()
            size_bytes = file.id.get_filesize()
        os.truncate(temporary, size_bytes)
    return DatasetInfo(
        path, spec, shard, contents.digit_source_name, contents.digit_source_digest, content_digest, size_bytes
    )


def write_pools(file: Any, spec: OverlaySpec, pools: Mapping[str, DigitPool]) -> None:
    """Write the source digits of every split."""
    for split in SPLITS:
        group = create_group(file, pool_group(split))
        for field in POOL_FIELDS:
            values = getattr(pools[split], field.name)
            Column(group, field, spec, len(values)).append(values)


def write_attributes(
    file: Any, spec: OverlaySpec, shard: Shard, source_name: str, source_digest: str, content_digest: str
) -> None:
    """Write the root attributes that every file has."""
    write_text(file, "format", FORMAT_NAME)
    file.attrs["format_version"] = np.array(FORMAT_VERSION, FORMAT_VERSION_DTYPE)
    write_text(file, "spec", spec.to_json())
    write_text(file, "digit_source", source_name)
    write_text(file, "digit_source_digest", source_digest)
    write_text(file, "shard", str(shard))
    write_text(file, "content_digest", content_digest)


def _make_block(spec: OverlaySpec, pools: Mapping[str, DigitPool], task: tuple[str, int, int]) -> Block:
    """Draw the samples [start, stop) of a split, and hash them where they were made."""
    split, start, stop = task
    samples = synthesize(spec, pools[split], split, start, stop)
    return split, samples, hash_samples(samples)


def _write_samples(file: Any, contents: Contents, progress: Progress | None) -> dict[str, Any]:
    spec = contents.spec
    columns: dict[str, dict[str, Column]] = {}
    totals = {split: count_rows(spec, split, contents.shard) for split in SPLITS}
    for split in SPLITS:
        group = create_group(file, split)
        columns[split] = {field.name: Column(group, field, spec, totals[split]) for field in SAMPLE_FIELDS}
        columns[split][BLOCK_DIGEST.name] = Column(group, BLOCK_DIGEST, spec, count_blocks(totals[split]))
    digests: dict[str, list[bytes]] = {split: [] for split in SPLITS}
    done = dict.fromkeys(SPLITS, 0)
    for split, samples, digest in contents.blocks:
        for field in SAMPLE_FIELDS:
            columns[split][field.name].append(getattr(samples, field.name))
        digests[split].append(digest)
        done[split] += len(samples)
        if progress is not None:
            progress(split, done[split], totals[split])
    if done != totals:
        raise AssertionError(f"{done} of {totals} samples were given")
    arrays = {split: np.frombuffer(b"".join(digests[split]), np.uint8).reshape(-1, DIGEST_BYTES) for split in SPLITS}
    for split in SPLITS:
        columns[split][BLOCK_DIGEST.name].append(arrays[split])
    return arrays


def _keep_finished(path: Path, spec: OverlaySpec, source: DigitSource, shard: Shard) -> DatasetInfo:
    """Return what an existing file is, if it is the very shard that is wanted.

    Raises:
        DataError: it is something else.
    """
    remedy = "pass --force to replace it, or choose another name"
    try:
        with open_dataset(path) as file:
            if (file.spec, file.digit_source_digest, file.shard) != (spec, source.digest, shard):
                raise DataError(f"{path} exists and is another dataset, or another shard than {shard}; {remedy}")
            remove_stale(path)
            return DatasetInfo(
                path, spec, shard, source.name, source.digest, file.content_digest, path.stat().st_size, was_there=True
            )
    except DataError as error:
        if remedy in str(error):
            raise
        raise DataError(f"{path} exists and is no shard of this dataset ({error}); {remedy}") from error
