"""Open a dataset file: its structure is checked on opening, its values on reading."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.sharding import MAX_SHARDS, Shard
from data_gen.spec import SPLITS, check_split
from data_gen.store.digests import combine_digests, hash_pool, hash_samples
from data_gen.store.faults import HDF5_ERRORS, Fault, first_line
from data_gen.store.format import BLOCK_DIGEST, POOL_FIELDS, SAMPLE_FIELDS, count_rows, pool_group
from data_gen.store.hdf5 import open_hdf5
from data_gen.store.header import ForeignError, Header, locate_part, read_header
from data_gen.store.structure import check_structure
from data_gen.store.values import check_pool_values, check_sample_values
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, join_blocks

SAMPLE_NAMES = tuple(field.name for field in SAMPLE_FIELDS)

_LEAST_OPEN_PARTS = 64
_OPEN_SHARE = 4
"""A file holds at most this part of the files that the system lets a process open; a dataset may have more parts."""


_Identity = tuple[int, ...]
"""Device, inode, size and times of a file: with these unchanged it is taken for the same."""


@dataclass(frozen=True)
class _Piece:
    """Samples [start, stop) of a split, and the part that holds them; None: the file itself."""

    start: int
    stop: int
    part: int | None


class OverlayFile:
    """A dataset file, open for reading; a context manager. Several readers may have the same file open.

    Attributes:
        path: the file.
        spec: the dataset's choices.
        shard: the part of the dataset that the file holds.
        parts: files that hold its samples; none if it holds them itself.
        digit_source_name: where its digits came from, e.g. "mnist".
        digit_source_digest: sha256 of the digit source, see `DigitSource`.
        content_digest: sha256 of the contents as the writer computed it; `verify_digest` computes it again.

    Raises:
        DataError: the file is missing, no dataset file, cut off, damaged, of another format version, incomplete, or
            held by a writer; or a part of it is. The message names the file, where it applies the dataset in it, and
            the remedy.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        faults: list[Fault] | None = None,
        *,
        is_part: bool = False,
        check_structure: bool = True,
        check_parts: bool = True,
    ) -> None:
        """Open the file.

        Args:
            path: the file.
            faults: what is wrong inside is added there, and only a useless header is refused.
            is_part: another file refers to this one, which then must not refer to more.
            check_structure: false for a file that was checked before, and is the same still.
            check_parts: check all parts at once, and not each when it is first read.
        """
        self.path = Path(path)
        self._is_part = is_part
        self._check_structure = check_structure
        self._file = open_hdf5(self.path)
        self._open_parts: OrderedDict[int, OverlayFile] = OrderedDict()
        self._checked_parts: dict[int, _Identity] = {}
        self._datasets: dict[str, Any] = {}
        try:
            header = self._check(faults)
            self._header = header
            self.spec = header.spec
            self.shard = header.shard
            self.digit_source_name = header.digit_source_name
            self.digit_source_digest = header.digit_source_digest
            self.content_digest = header.content_digest
            self.parts = tuple(self.path.parent / part for part in header.parts)
            if check_parts:
                for number in range(len(header.parts)):
                    self._get_part(number)
        except BaseException as error:
            self.close()
            if isinstance(error, HDF5_ERRORS) and not isinstance(error, DataError):
                raise DataError(f"{self.path}: damaged ({first_line(error)}); generate it again") from error
            raise
        self._pieces = {split: list(self._list_pieces(split)) for split in SPLITS}

    def _check(self, collected: list[Fault] | None) -> Header:
        faults: list[Fault] = []
        try:
            header = read_header(self._file, faults)
        except ForeignError as error:
            raise DataError(f"{self.path}: {error}") from error
        if header is None:
            if collected is not None:
                check_structure(self._file, self.path, None, faults)
                collected += faults[1:]
            raise DataError(f"{self.path}: {faults[0]}")
        if self._is_part and header.parts:  # perhaps to itself
            raise DataError(f"{self.path}: refers to parts, and is a part itself; merge the parts again")
        if self._check_structure:
            check_structure(self._file, self.path, header, faults)
        if collected is None:
            self._refuse(faults)
        else:
            collected += faults
        return header

    def __enter__(self) -> OverlayFile:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file and its parts; closing twice is allowed."""
        while self._open_parts:
            self._open_parts.popitem()[1].close()
        self._datasets.clear()
        self._file.close()

    def num(self, split: str) -> int:
        """Return the number of samples of `split` in the file."""
        return count_rows(self.spec, check_split(split), self.shard)

    def first(self, split: str) -> int:
        """Return the index in the whole dataset of the file's first sample of `split`; 0 but for parts."""
        return self.shard.cut(self.spec.num_samples(check_split(split)))[0]

    def read_split(self, split: str) -> SampleBlock:
        """Return all samples of `split`, in memory, each block as its digest says.

        Raises:
            DataError: unknown split, or the values contradict each other, their digest, or cannot be read.
        """
        samples = self.read_samples(split, 0, self.num(split))
        self.check_samples(split, samples, 0)
        return samples

    def read_samples(self, split: str, start: int, stop: int) -> SampleBlock:
        """Return the samples [start, stop) of `split` as they are stored, unchecked.

        Raises:
            DataError: unknown split, or they cannot be read.
        """
        blocks = [file._read_block(split, low, high) for file, low, high in self._cut(check_split(split), start, stop)]
        return join_blocks(blocks) if blocks else self._read_block(split, 0, 0)

    def read_rows(
        self, split: str, rows: Sequence[int], names: Sequence[str] = SAMPLE_NAMES
    ) -> dict[str, NDArray[Any]]:
        """Return some samples of `split`, in the order asked for: for each of the `names`, an array (N, ...).

        Reads no more than these rows, for programs that have not room for a whole split. Unchecked.

        Raises:
            DataError: unknown split, or they cannot be read.
            IndexError: there is no such row.
        """
        num_samples = self.num(split)
        for row in rows:
            if not 0 <= row < num_samples:
                raise IndexError(f"{self.path}: {split} has samples 0 to {num_samples - 1}, and no {row}")
        kinds = {field.name: field for field in SAMPLE_FIELDS}
        values = {
            name: np.empty((len(rows), *kinds[name].row_shape(self.spec)), np.dtype(kinds[name].dtype))
            for name in names
        }
        # In the order of the file, so that a chunk is read once for all of its rows.
        for place in np.argsort(np.asarray(rows, np.int64), kind="stable"):
            ((file, low, _),) = self._cut(split, rows[place], rows[place] + 1)
            for name in names:
                values[name][place] = file._read(f"{split}/{name}", low, low + 1)[0]
        return values

    def read_pool(self, split: str, faults: list[Fault] | None = None) -> DigitPool:
        """Return the digits that `split` draws from, in memory; fresh samples can be synthesized from them.

        Args:
            split: of the dataset.
            faults: impossible values are added there, and not refused.

        Raises:
            DataError: as for `read_split`.
        """
        pool = self._read_pool(split)
        found: list[Fault] = []
        check_pool_values(pool, self.spec, pool_group(split), found)
        if faults is None:
            self._refuse(found)
        else:
            faults += found
        return pool

    def read_block_digests(self, split: str, start: int = 0, stop: int | None = None) -> NDArray[np.uint8]:
        """Return the stored digests of the blocks [start, stop) of `split`, uint8 (blocks, 32)."""
        return self._read(f"{check_split(split)}/{BLOCK_DIGEST.name}", start, stop)

    def check_samples(self, split: str, samples: SampleBlock, start: int) -> None:
        """Check samples that `read_samples` returned, from row `start` on, a multiple of `BLOCK_SIZE`.

        Raises:
            DataError: they contradict each other, or the digests that the file has of its blocks.
        """
        faults: list[Fault] = []
        check_sample_values(samples, self.spec, self.count_pool(split), split, faults)
        self._refuse(faults)
        digests = self.read_block_digests(split, start // BLOCK_SIZE, -(-(start + len(samples)) // BLOCK_SIZE))
        for number, digest in enumerate(digests):
            low = number * BLOCK_SIZE
            block = samples[low : low + BLOCK_SIZE]
            if hash_samples(block) != digest.tobytes():
                self._refuse([describe_changed_samples(split, start + low, start + low + len(block))])

    def verify_samples(self, split: str) -> None:
        """Check all samples of `split` as `read_split` does, a few at a time: memory does not grow with them.

        Raises:
            DataError: unknown split, or the values contradict each other, their digest, or cannot be read.
        """
        for start in range(0, self.num(split), BLOCK_SIZE):
            self.check_samples(split, self.read_samples(split, start, min(start + BLOCK_SIZE, self.num(split))), start)

    def count_pool(self, split: str) -> int:
        """Return how many digits `split` draws from."""
        return int(self._file[f"{pool_group(check_split(split))}/labels"].shape[0])

    def verify_digest(self) -> None:
        """Compare the digests of the blocks, the digits and the spec with the digest of the whole.

        The samples are compared with the digests of their blocks when they are read, by `read_split`.

        Raises:
            DataError: they differ.
        """
        found = self.compute_digest()
        if found != self.content_digest:
            raise DataError(
                f"{self.path}: the contents do not match the stored digest ({found[:12]}... instead of "
                f"{self.content_digest[:12]}...): damaged or changed; generate it again"
            )

    def compute_digest(self) -> str:
        """Return the content digest, from the digests of the blocks as they are stored and the digits as they are."""
        return combine_digests(
            self._header.spec_json,
            self.digit_source_digest,
            {split: self.read_block_digests(split) for split in SPLITS},
            {split: hash_pool(self._read_pool(split)) for split in SPLITS},
            self.shard,
        )

    def _read_pool(self, split: str) -> DigitPool:
        group = pool_group(check_split(split))
        return DigitPool(**{field.name: self._read(f"{group}/{field.name}") for field in POOL_FIELDS})

    def _list_pieces(self, split: str) -> Iterator[_Piece]:
        if not self.parts:
            yield _Piece(0, self.num(split), None)
        for number in range(len(self.parts)):
            yield _Piece(*Shard(number + 1, len(self.parts)).cut(self.num(split)), number)

    def _cut(self, split: str, start: int, stop: int) -> Iterator[tuple[OverlayFile, int, int]]:
        """Yield the files that hold the samples [start, stop), each with the range of its own rows."""
        for piece in self._pieces[split]:
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                file = self if piece.part is None else self._get_part(piece.part)
                yield file, low - piece.start, high - piece.start

    def open_part(self, number: int, faults: list[Fault] | None = None, *, check_structure: bool = True) -> OverlayFile:
        """Open one of the parts, counted from 0; who asks for it closes it.

        Args:
            number: of the part.
            faults: what is wrong inside is added there, as on opening a file.
            check_structure: as on opening a file.

        Raises:
            DataError: it is not there, cannot be opened, or is not the part that belongs there.
        """
        path = locate_part(self.path, self._header.parts[number])
        part = OverlayFile(path, faults, is_part=True, check_structure=check_structure)
        wanted = Shard(number + 1, len(self.parts))
        header = part._header
        same = (header.spec_json, header.digit_source_digest, header.shard, header.parts)
        if same != (self._header.spec_json, self.digit_source_digest, wanted, ()):
            part.close()
            raise DataError(
                f"{self.path}: its part {part.path} is not shard {wanted} of the same dataset; put the right file "
                "there, or merge the parts again"
            )
        return part

    def _get_part(self, number: int) -> OverlayFile:
        if number in self._open_parts:
            self._open_parts.move_to_end(number)
            return self._open_parts[number]
        identity = _identify(locate_part(self.path, self._header.parts[number]))
        # Opened for every batch, a part need not be looked through each time.
        is_known = self._checked_parts.get(number) == identity
        part = self.open_part(number, check_structure=not is_known)
        self._open_parts[number] = part
        self._checked_parts[number] = identity
        if len(self._open_parts) > count_open_parts():
            self._open_parts.popitem(last=False)[1].close()
        return part

    def _read_block(self, split: str, start: int, stop: int) -> SampleBlock:
        names = [field.name for field in fields(SampleBlock)]
        return SampleBlock(*(self._read(f"{split}/{name}", start, stop) for name in names))

    def _read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        try:
            if name not in self._datasets:  # looked up once: that takes longer than reading a row
                self._datasets[name] = self._file[name]
            values: NDArray[Any] = self._datasets[name][start:stop]
        except HDF5_ERRORS as error:
            raise DataError(
                f"{self.path}: dataset {name} cannot be read ({first_line(error)}); generate the file again"
            ) from error
        return values

    def _refuse(self, faults: list[Fault]) -> None:
        if faults:
            raise DataError(f"{self.path}: {faults[0]}")


def count_open_parts() -> int:
    """Return how many parts a file holds open at a time."""
    try:
        import resource  # noqa: PLC0415 - exists on POSIX only
    except ImportError:
        return _LEAST_OPEN_PARTS
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_LEAST_OPEN_PARTS, limit // _OPEN_SHARE if limit != resource.RLIM_INFINITY else MAX_SHARDS)


def _identify(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def describe_changed_samples(split: str, start: int, stop: int) -> Fault:
    """Return the fault of samples [start, stop) that are not those that their digests were made of."""
    return Fault(
        f"{split} samples {start:,} to {stop - 1:,} do not match their stored digest: damaged or changed", where=split
    )


def open_dataset(path: str | os.PathLike[str], *, check_parts: bool = True) -> OverlayFile:
    """Open the dataset file `path`; see `OverlayFile`."""
    return OverlayFile(path, check_parts=check_parts)
