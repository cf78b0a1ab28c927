"""Open a dataset file: its structure is checked on opening, its values on reading."""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import stat
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.spec import check_split
from data_gen.store.check import HDF5_ERRORS, check_pool_values, check_sample_values, check_structure, read_header
from data_gen.store.format import POOL_FIELDS, SAMPLE_FIELDS, combine_digests, list_datasets, pool_group
from data_gen.synthesis import SampleBlock

_HASH_STEP_BYTES = 8 << 20


class OverlayFile:
    """A dataset file, open for reading; a context manager. Several readers may have the same file open.

    Attributes:
        path: the file.
        spec: the dataset's choices.
        digit_source_name: where its digits came from, e.g. "mnist".
        digit_source_digest: sha256 of the digit source, see `DigitSource`.
        content_digest: sha256 of the contents as the writer computed it; `verify_digest` computes it again.

    Raises:
        DataError: the file is missing, no dataset file, cut off, damaged, of a newer format, incomplete, or
            held by a writer. The message names the file, where it applies the dataset in it, and the remedy.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file = _open_hdf5(self.path)
        try:
            header = read_header(self._file, self.path)
            self.spec = header.spec
            self.digit_source_name = header.digit_source_name
            self.digit_source_digest = header.digit_source_digest
            self.content_digest = header.content_digest
            check_structure(self._file, self.path, self.spec)
        except BaseException as error:
            self.close()
            if isinstance(error, HDF5_ERRORS) and not isinstance(error, DataError):
                raise DataError(f"{self.path}: damaged ({_first_line(error)}); generate it again") from error
            raise

    def __enter__(self) -> OverlayFile:
        """Return the file itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._file.close()

    def num(self, split: str) -> int:
        """Return the number of samples of `split`."""
        return self.spec.num_samples(split)

    def read_split(self, split: str) -> SampleBlock:
        """Return all samples of `split`, in memory.

        Raises:
            DataError: unknown split, or the values contradict each other or cannot be read.
        """
        check_split(split)
        samples = SampleBlock(**{field.name: self._read(f"{split}/{field.name}") for field in SAMPLE_FIELDS})
        num_pool = self._file[f"{pool_group(split)}/labels"].shape[0]
        check_sample_values(samples, self.spec, num_pool, self.path, split)
        return samples

    def read_pool(self, split: str) -> DigitPool:
        """Return the digits that `split` draws from, in memory; fresh samples can be synthesized from them.

        Raises:
            DataError: as for `read_split`.
        """
        group = pool_group(check_split(split))
        pool = DigitPool(**{field.name: self._read(f"{group}/{field.name}") for field in POOL_FIELDS})
        check_pool_values(pool, self.path, group)
        return pool

    def verify_digest(self) -> None:
        """Read the whole file and compare its contents with the digest that the writer stored.

        Raises:
            DataError: they differ.
        """
        digests = {path: self._hash(path) for path, _ in list_datasets()}
        found = combine_digests(self.spec, self.digit_source_digest, digests)
        if found != self.content_digest:
            raise DataError(
                f"{self.path}: the contents do not match the stored digest ({found[:12]}... instead of "
                f"{self.content_digest[:12]}...): damaged or changed; generate it again"
            )

    def _read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        try:
            values: NDArray[Any] = self._file[name][start:stop]
        except HDF5_ERRORS as error:
            raise DataError(
                f"{self.path}: dataset {name} cannot be read ({_first_line(error)}); generate the file again"
            ) from error
        return values

    def _hash(self, name: str) -> str:
        dataset = self._file[name]
        step = max(1, _HASH_STEP_BYTES * len(dataset) // max(1, dataset.nbytes))
        digest = hashlib.sha256()
        for start in range(0, len(dataset), step):
            digest.update(np.ascontiguousarray(self._read(name, start, start + step)).data)
        return digest.hexdigest()


def open_dataset(path: str | os.PathLike[str]) -> OverlayFile:
    """Open the dataset file `path`; see `OverlayFile`."""
    return OverlayFile(path)


def _open_hdf5(path: Path) -> Any:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path}: not a file; give the file that `overlaycaps generate` wrote")
        with path.open("rb"):
            pass
    except FileNotFoundError:
        command = shlex.join(["overlaycaps", "generate", "--out", str(path)])
        raise DataError(f"{path}: no such file; make it with `{command}`") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    try:
        return h5py.File(path, "r", locking="best-effort")
    except (OSError, RuntimeError) as error:
        raise _explain_open_failure(path, error) from error


def _explain_open_failure(path: Path, error: OSError | RuntimeError) -> DataError:
    text = str(error)
    if getattr(error, "errno", None) == errno.EAGAIN or "unable to lock" in text or "already open" in text:
        return DataError(f"{path}: in use by a program that is writing to it; wait until that has finished")
    if "truncated" in text:
        return DataError(f"{path}: cut off, an incomplete copy or download; copy it again, or generate it again")
    if not h5py.is_hdf5(path):
        return DataError(f"{path}: not an HDF5 file; give the file that `overlaycaps generate` wrote")
    return DataError(f"{path}: a damaged HDF5 file ({_first_line(error)}); generate it again")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
