"""Make one dataset of its shards: a file that refers to them, or one that holds everything itself."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.errors import DataError, show_value
from data_gen.sharding import WHOLE, Shard
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.digests import combine_digests, hash_pool
from data_gen.store.format import BLOCK_DIGEST, PARTS_ATTRIBUTE, SAMPLE_FIELDS, Field, count_blocks, count_bytes
from data_gen.store.hdf5 import Column, create_file, create_group, write_text
from data_gen.store.header import is_allowed, is_inside
from data_gen.store.mappings import list_virtual_sources
from data_gen.store.read import open_dataset
from data_gen.store.replace import check_target, replacing
from data_gen.store.write import (
    Block,
    Contents,
    DatasetInfo,
    Progress,
    write_attributes,
    write_file,
    write_pools,
)
from data_gen.synthesis import BLOCK_SIZE


@dataclass(frozen=True)
class _Part:
    path: Path
    spec: OverlaySpec
    shard: Shard
    digit_source_name: str
    digit_source_digest: str
    content_digest: str


def merge_parts(
    parts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    copy: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> DatasetInfo:
    """Make one file of all shards of a dataset, given in any order.

    Without `copy` the file refers to the parts (HDF5 virtual datasets), which must lie in its folder or below and stay
    there; samples are not read, which takes a moment only. With `copy` it holds everything, has the same bytes as if
    it had been generated at once, and every sample is compared with its digest on the way.

    Args:
        parts: the files.
        out: the file to write; its folder must exist.
        copy: write the samples into it.
        force: replace an existing file.
        progress: told about each block, with `copy`.

    Raises:
        DataError: a part is missing, there twice, damaged, or of another dataset; or `out` cannot be written.
    """
    target = Path(out)
    check_target(target, force=force)
    found = _order([_look_at(Path(part), is_alone=len(parts) == 1) for part in parts])
    first = found[0]
    for part in found:
        if part.path.resolve() == target.resolve():
            raise DataError(f"{target} is one of the parts; choose another name for the whole")
    with open_dataset(first.path) as file:
        pools = {split: file.read_pool(split) for split in SPLITS}
    pool_digests = {split: hash_pool(pools[split]) for split in SPLITS}
    block_digests = _collect_digests(found, pool_digests)
    if copy:
        contents = Contents(
            first.spec, WHOLE, first.digit_source_name, first.digit_source_digest, pools, _read_blocks(found)
        )
        return write_file(target, contents, force=force, progress=progress)
    names = [_relate(part.path, target) for part in found]
    digest = combine_digests(first.spec.to_json(), first.digit_source_digest, block_digests, pool_digests)
    _write_referring(target, first, names, pools, block_digests, digest, force)
    return DatasetInfo(
        target,
        first.spec,
        WHOLE,
        first.digit_source_name,
        first.digit_source_digest,
        digest,
        target.stat().st_size,
    )


def _look_at(path: Path, *, is_alone: bool) -> _Part:
    with open_dataset(path) as file:
        # The only shard of a job of one is a whole dataset; then it holds its samples itself.
        if file.shard == WHOLE and (file.parts or not is_alone):
            raise DataError(f"{path}: a whole dataset, not a part of one; give the files of the shards alone")
        return _Part(path, file.spec, file.shard, file.digit_source_name, file.digit_source_digest, file.content_digest)


def _order(parts: list[_Part]) -> list[_Part]:
    """Return the parts in the order of their numbers.

    Raises:
        DataError: they are not all the shards of one dataset, each once.
    """
    if not parts:
        raise DataError("no parts are given; give the files of all shards")
    first = parts[0]
    by_number: dict[int, _Part] = {}
    for part in parts:
        if part.spec != first.spec:
            mine, others = part.spec.to_dict(), first.spec.to_dict()
            differing = ", ".join(name for name in mine if mine[name] != others[name])
            raise DataError(
                f"{part.path} and {first.path} are of different datasets (they differ in {differing}); give the shards "
                "of one"
            )
        if part.digit_source_digest != first.digit_source_digest:
            raise DataError(
                f"{part.path} and {first.path} are made of different digits; give the shards of one dataset"
            )
        if part.shard.count != first.shard.count:
            raise DataError(
                f"{part.path} is shard {part.shard} and {first.path} is shard {first.shard}; give the shards of one job"
            )
        other = by_number.setdefault(part.shard.number, part)
        if other is not part:
            raise DataError(f"{part.path} and {other.path} are both shard {part.shard}; give each shard once")
    missing = [str(number) for number in range(1, first.shard.count + 1) if number not in by_number]
    if missing:
        shown = ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        raise DataError(
            f"of {first.shard.count} shards these are missing: {shown}; generate them (`--shard "
            f"{missing[0]}/{first.shard.count}`) or name their files"
        )
    return [by_number[number] for number in sorted(by_number)]


def _collect_digests(parts: Sequence[_Part], pool_digests: Mapping[str, str]) -> dict[str, NDArray[np.uint8]]:
    """Return the digests of all blocks by split.

    Raises:
        DataError: those of a part, with the digits of the first part, do not give the part's own content digest.
    """
    rows: dict[str, list[NDArray[np.uint8]]] = {split: [] for split in SPLITS}
    for part in parts:
        with open_dataset(part.path) as file:
            own = {split: file.read_block_digests(split) for split in SPLITS}
        found = combine_digests(part.spec.to_json(), part.digit_source_digest, own, pool_digests, part.shard)
        if found != part.content_digest:
            raise DataError(
                f"{part.path}: the contents do not match the stored digest: damaged or changed; generate shard "
                f"{part.shard} again"
            )
        for split in SPLITS:
            rows[split].append(own[split])
    return {split: np.concatenate(rows[split]) for split in SPLITS}


def _read_blocks(parts: Sequence[_Part]) -> Generator[Block, None, None]:
    """Yield the blocks of all parts, split by split, each compared with its digest."""
    for split in SPLITS:
        for part in parts:
            with open_dataset(part.path) as file:
                for start in range(0, file.num(split), BLOCK_SIZE):
                    samples = file.read_samples(split, start, min(start + BLOCK_SIZE, file.num(split)))
                    file.check_samples(split, samples, start)
                    number = start // BLOCK_SIZE
                    yield split, samples, file.read_block_digests(split, number, number + 1).tobytes()


def _relate(part: Path, target: Path) -> str:
    """Return a part's path as seen from the file that refers to it."""
    folder = target.resolve().parent
    try:
        name = part.resolve().relative_to(folder).as_posix()
    except ValueError:
        name = ""
    foreign = next((char for char in name if not is_allowed(char)), None)
    if foreign is not None:
        raise DataError(
            f"{show_value(str(part))}: its name has the character {foreign!r}, which a file cannot refer to on every "
            "system; rename it, or use --copy"
        )
    if not is_inside(name):
        raise DataError(
            f"{part}: not in the folder of {target}, or below it, where a file finds its parts again; write {target} "
            "there, or use --copy"
        )
    return name


def _write_referring(
    path: Path,
    first: _Part,
    names: Sequence[str],
    pools: Mapping[str, DigitPool],
    block_digests: Mapping[str, NDArray[np.uint8]],
    content_digest: str,
    force: bool,
) -> None:
    spec = first.spec
    num_digits = {split: len(pools[split].labels) for split in SPLITS}
    # A part holds the same digits and fewer samples: what an empty shard would need, and room for digests and names.
    needed = count_bytes(spec, num_digits, Shard(1, 100_000)) + sum(map(len, names)) * 20 + 4 * 2**20
    with replacing(path, needed, force=force) as temporary, create_file(temporary) as file:
        for split in SPLITS:
            group = create_group(file, split)
            for field in SAMPLE_FIELDS:
                _create_virtual(group, spec, names, split, field)
            num_blocks = count_blocks(spec.num_samples(split))
            Column(group, BLOCK_DIGEST, spec, num_blocks).append(block_digests[split])
        write_pools(file, spec, pools)
        write_attributes(file, spec, WHOLE, first.digit_source_name, first.digit_source_digest, content_digest)
        write_text(file, PARTS_ATTRIBUTE, json.dumps(list(names)))


def _create_virtual(group: Any, spec: OverlaySpec, names: Sequence[str], split: str, field: Field) -> None:
    """Create a dataset whose rows are those of the parts, one after the other."""
    shape = (spec.num_samples(split), *field.row_shape(spec))
    space = h5py.h5s.create_simple(shape)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_obj_track_times(False)
    for name, dataset, (low, high) in list_virtual_sources(spec, names, split, field):
        count = tuple(last - start + 1 for start, last in zip(low, high, strict=True))
        selected = h5py.h5s.create_simple(shape)
        selected.select_hyperslab(low, tuple(1 for _ in low), block=count)
        properties.set_virtual(selected, name.encode(), dataset.encode(), h5py.h5s.create_simple(count))
    kind = h5py.h5t.py_create(np.dtype(field.dtype))
    h5py.h5d.create(group.id, field.name.encode(), kind, space, dcpl=properties)
