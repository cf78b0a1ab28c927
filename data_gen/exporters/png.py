"""A folder of PNG images, 8-bit grey, and what they show.

    spec.json            what was exported: the spec and the digests of the dataset
    train.csv            one row for each sample of the split
    train/00000000.png   a sample; its number is its index in the whole dataset, also where a part is exported

The columns of a table are `index`, `file`, `labels` (names of the classes, with a space between them), `digit_1` to
`digit_K`, `source_index_1` to `source_index_K`, `offset_y_px_1`, `offset_x_px_1` and so on to K, and `overlap`. Numbers
are those of the data file: an absent digit is -1 and has offset 0.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from data_gen.errors import DataError, show_value
from data_gen.exporters.base import read_blocks
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.read import OverlayFile
from data_gen.store.replace import check_folder_target, replacing_folder
from data_gen.store.write import Progress
from data_gen.synthesis import SampleBlock

FORMAT_NAME = "overlaycaps.png"
FORMAT_VERSION = 1
SPEC_NAME = "spec.json"

_DISK_BLOCK_BYTES = 4096
_ROW_BYTES = 256
"""About the most that a row of a table takes."""

_MAX_SPEC_BYTES = 2**20
_IMAGE_NAME = re.compile(r"[0-9]{8}\.png")


def export(file: OverlayFile, out: Path, splits: Sequence[str], *, force: bool, progress: Progress | None) -> int:
    """Write the samples of `splits` to the folder `out`; see `Exporter.export`."""
    check_folder_target(out, force=force, check_former=check_former_export)
    num_samples = {split: file.num(split) for split in splits}
    needed_bytes = sum(num_samples.values()) * _count_sample_bytes(file.spec) + 2**20
    with replacing_folder(out, needed_bytes, force=force, check_former=check_former_export) as temporary:
        for split in splits:
            _write_split(temporary, file, split, progress)
        _write_spec(temporary / SPEC_NAME, file, num_samples)
    return sum(num_samples.values())


def check_former_export(folder: Path) -> None:
    """Check that a folder is an export of this kind and holds nothing else, so that nothing is lost with it.

    Raises:
        DataError: it is not, or it holds more.
    """
    remedy = "it is not replaced; choose another name"
    if not _has_marker(folder / SPEC_NAME):
        raise DataError(f"{folder} exists and is no export to png (its {SPEC_NAME} is not there, or another); {remedy}")
    allowed = {SPEC_NAME, *(f"{split}.csv" for split in SPLITS)}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in SPLITS and entry.is_dir(follow_symlinks=False):
                _check_images(Path(entry.path), folder, remedy)
            elif entry.name not in allowed or not entry.is_file(follow_symlinks=False):
                raise DataError(f"{folder} holds {show_value(entry.name)}, which is not of an export; {remedy}")


def _check_images(images: Path, folder: Path, remedy: str) -> None:
    with os.scandir(images) as entries:
        for entry in entries:
            if not _IMAGE_NAME.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                name = show_value(f"{images.name}/{entry.name}")
                raise DataError(f"{folder} holds {name}, which is not of an export; {remedy}")


def _has_marker(path: Path) -> bool:
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_SPEC_BYTES:
            return False
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT_NAME


def _write_split(folder: Path, file: OverlayFile, split: str, progress: Progress | None) -> None:
    (folder / split).mkdir()
    with (folder / f"{split}.csv").open("x", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(_list_columns(file.spec.max_digits))
        for first, samples in read_blocks(file, split, progress):
            for row in range(len(samples)):
                name = f"{split}/{first + row:08}.png"
                Image.fromarray(samples.images[row]).save(folder / name, format="PNG")
                writer.writerow([first + row, name, *_list_values(samples, row, file.spec)])


def _list_columns(num_places: int) -> list[str]:
    places = range(1, num_places + 1)
    return [
        "index",
        "file",
        "labels",
        *(f"digit_{place}" for place in places),
        *(f"source_index_{place}" for place in places),
        *(f"offset_{axis}_px_{place}" for place in places for axis in "yx"),
        "overlap",
    ]


def _list_values(samples: SampleBlock, row: int, spec: OverlaySpec) -> list[Any]:
    return [
        " ".join(name for name, shown in zip(spec.class_names, samples.labels[row].tolist(), strict=True) if shown),
        *samples.digits[row].tolist(),
        *samples.source_index[row].tolist(),
        *samples.offset_px[row].ravel().tolist(),
        str(samples.overlap[row]),  # as few digits as give the same float32 again
    ]


def _write_spec(path: Path, file: OverlayFile, num_samples: dict[str, int]) -> None:
    content = {
        "format": FORMAT_NAME,
        "format_version": FORMAT_VERSION,
        "digit_source": file.digit_source_name,
        "digit_source_digest": file.digit_source_digest,
        "content_digest": file.content_digest,
        "shard": str(file.shard),
        "num_samples": num_samples,
        "spec": file.spec.to_dict(),
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8", newline="\n")


def _count_sample_bytes(spec: OverlaySpec) -> int:
    """Return about the most that a sample takes on disk; files take whole blocks there."""
    image_bytes = spec.canvas_px * (spec.canvas_px + 1) + 256
    return -(-image_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES + _ROW_BYTES
