"""One `.npz` file, which `numpy.load(path, allow_pickle=False)` reads.

For each split it has the arrays `train_images`, `train_labels`, `train_digits`, `train_source_index`,
`train_offset_px` and `train_overlap`, of the types and shapes of `SampleBlock`; and for all `spec`, a text of JSON, and
`class_names`. Nothing is compressed: NumPy unpacks slowly, and samples are random enough to gain little.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data_gen.errors import DataError
from data_gen.exporters.base import read_blocks
from data_gen.spec import OverlaySpec
from data_gen.store.format import SAMPLE_FIELDS, Field, row_bytes
from data_gen.store.read import OverlayFile
from data_gen.store.replace import check_target, replacing
from data_gen.store.write import Progress

_DATE = (1980, 1, 1, 0, 0, 0)
"""Of every member, so that the bytes do not depend on the time; the first that a ZIP file can hold."""

_COPY_BYTES = 2**20


def export(file: OverlayFile, out: Path, splits: Sequence[str], *, force: bool, progress: Progress | None) -> int:
    """Write the samples of `splits` to the file `out`; see `Exporter.export`."""
    if out.suffix.lower() != ".npz":
        raise DataError(f"{out}: an export to npz needs a name that ends in .npz; choose one")
    check_target(out, force=force)
    num_samples = {split: file.num(split) for split in splits}
    with (
        replacing(out, _count_bytes(file.spec, sum(num_samples.values())), force=force) as temporary,
        zipfile.ZipFile(temporary, "w") as archive,
    ):
        for split in splits:
            _write_split(archive, file, split, temporary.parent, progress)
        _write_array(archive, "spec", np.array(file.spec.to_json()))
        _write_array(archive, "class_names", np.array(file.spec.class_names))
    return sum(num_samples.values())


def _write_split(
    archive: zipfile.ZipFile, file: OverlayFile, split: str, folder: Path, progress: Progress | None
) -> None:
    """Write the arrays of a split, one after the other as a ZIP file wants it, though samples are read but once.

    While images go straight into the archive, the other fields, a few bytes a sample, wait in nameless files in
    `folder`.
    """
    images, *others = SAMPLE_FIELDS
    with contextlib.ExitStack() as stack:
        waiting: dict[str, IO[bytes]] = {
            field.name: stack.enter_context(tempfile.TemporaryFile(dir=folder)) for field in others
        }
        with _open_member(archive, f"{split}_{images.name}") as member:
            _write_header(member, images, file.spec, file.num(split))
            for _, samples in read_blocks(file, split, progress):
                member.write(_encode(samples.images, images))
                for field in others:
                    waiting[field.name].write(_encode(getattr(samples, field.name), field))
        for field in others:
            with _open_member(archive, f"{split}_{field.name}") as member:
                _write_header(member, field, file.spec, file.num(split))
                waiting[field.name].seek(0)
                shutil.copyfileobj(waiting[field.name], member, _COPY_BYTES)


def _write_array(archive: zipfile.ZipFile, name: str, values: NDArray[Any]) -> None:
    with _open_member(archive, name) as member:
        # Little-endian on any machine, as the samples are.
        np.lib.format.write_array(member, values.astype(values.dtype.newbyteorder("<")), allow_pickle=False)


def _write_header(member: IO[bytes], field: Field, spec: OverlaySpec, num_rows: int) -> None:
    shape = (num_rows, *field.row_shape(spec))
    np.lib.format.write_array_header_1_0(member, {"descr": field.dtype, "fortran_order": False, "shape": shape})


def _encode(values: NDArray[Any], field: Field) -> memoryview:
    return np.ascontiguousarray(values, dtype=field.dtype).data.cast("B")


def _open_member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    member = zipfile.ZipInfo(f"{name}.npy", date_time=_DATE)
    member.create_system = 3  # the same on every system
    member.external_attr = 0o644 << 16
    return archive.open(member, "w", force_zip64=True)  # sizes may need 64 bits, and are not known yet


def _count_bytes(spec: OverlaySpec, num_samples: int) -> int:
    """Return the most that the archive and the waiting fields take together, of one split that holds everything."""
    images, *others = (row_bytes(field, spec) for field in SAMPLE_FIELDS)
    return num_samples * (images + 2 * sum(others)) + 2**20
