"""HDF5 as the format wants it: nothing in a file depends on the time, and every header has a checksum.

The low-level calls are for three things that h5py's own interface leaves to HDF5's defaults: the version of the file
format (1.10's, whose headers carry checksums, whatever the library's version), and times in the headers of the root
group and of other groups (none, or equal files would differ).
"""

from __future__ import annotations

import errno
import shlex
import stat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from data_gen.errors import DataError
from data_gen.spec import OverlaySpec
from data_gen.store.faults import HDF5_ERRORS, first_line
from data_gen.store.format import Field, choose_chunks, row_bytes


def create_file(path: Path) -> Any:
    """Create an HDF5 file, open for writing, as an `h5py.File`."""
    creation = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    creation.set_obj_track_times(False)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    # A lock that the file system does not offer is no reason to fail: nobody else knows the temporary name.
    access.set_file_locking(True, True)
    return h5py.File(h5py.h5f.create(bytes(path), h5py.h5f.ACC_TRUNC, fcpl=creation, fapl=access))


def create_group(file: Any, name: str) -> Any:
    """Create a group, and those on the way to it."""
    node = file
    for part in name.split("/"):
        if part in node:
            node = node[part]
            continue
        creation = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        creation.set_obj_track_times(False)
        node = h5py.Group(h5py.h5g.create(node.id, part.encode(), gcpl=creation))
    return node


def write_text(file: Any, name: str, text: str) -> None:
    """Write a root attribute of fixed length: texts of variable length lie in a heap that has no checksum."""
    encoded = text.encode()
    file.attrs.create(name, np.bytes_(encoded), dtype=h5py.string_dtype("utf-8", max(1, len(encoded))))


class Column:
    """One dataset that is filled from the front."""

    def __init__(self, group: Any, field: Field, spec: OverlaySpec, num_rows: int) -> None:
        self._dtype = np.dtype(field.dtype)
        self._dataset = group.create_dataset(
            field.name,
            shape=(num_rows, *field.row_shape(spec)),
            dtype=self._dtype,
            chunks=choose_chunks(num_rows, row_bytes(field, spec), field.row_shape(spec)),
            track_times=False,
        )
        self._num_written = 0

    def append(self, values: NDArray[Any]) -> None:
        """Write the next rows."""
        if not len(values):
            return
        stored = np.ascontiguousarray(values, dtype=self._dtype)
        self._dataset[self._num_written : self._num_written + len(stored)] = stored
        self._num_written += len(stored)


def open_hdf5(path: Path) -> Any:
    """Open any HDF5 file for reading.

    Raises:
        DataError: it is missing, no HDF5 file, cut off, damaged, or held by a writer.
    """
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
    except HDF5_ERRORS as error:
        raise _explain_open_failure(path, error) from error


def _explain_open_failure(path: Path, error: Exception) -> DataError:
    text = str(error)
    if getattr(error, "errno", None) == errno.EAGAIN or "unable to lock" in text or "already open" in text:
        return DataError(f"{path}: in use by a program that is writing to it; wait until that has finished")
    if "truncated" in text:
        return DataError(f"{path}: cut off, an incomplete copy or download; copy it again, or generate it again")
    if not h5py.is_hdf5(path):
        return DataError(f"{path}: not an HDF5 file; give the file that `overlaycaps generate` wrote")
    return DataError(f"{path}: a damaged HDF5 file ({first_line(error)}); generate it again")
