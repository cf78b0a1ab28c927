"""The virtual datasets of a file that refers to parts: they are for other programs, this one reads the parts itself.

HDF5 keeps what a virtual dataset refers to in a heap without checksums. A damaged one can make it crash or run for
ever, so these datasets are opened in a process of their own, and by the inspection alone.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from data_gen.sharding import Shard
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.faults import HDF5_ERRORS, Fault, first_line
from data_gen.store.format import SAMPLE_FIELDS, Field
from data_gen.store.hdf5 import open_hdf5
from data_gen.store.header import Header, read_header
from data_gen.store.structure import find_dataset

_REMEDY = "merge the parts again"
_LIMIT_S = 30.0
_LIMIT_PER_PART_S = 0.05

# The child looks for modules where this process does, and not in the folder in which it happens to be started.
_CHILD = (
    "import sys; sys.path[:] = sys.argv[3:]; from data_gen.store.mappings import run_child; run_child(*sys.argv[1:3])"
)

Bounds = tuple[tuple[int, ...], tuple[int, ...]]


def list_virtual_sources(
    spec: OverlaySpec, parts: Sequence[str], split: str, field: Field
) -> list[tuple[str, str, Bounds]]:
    """Return, for each part with samples of the split, its file, its dataset, and the first and last element there.

    HDF5 takes % in the name of a file for a pattern; doubled, it stands for itself.
    """
    sources = []
    shape = field.row_shape(spec)
    for number, part in enumerate(parts, start=1):
        start, stop = Shard(number, len(parts)).cut(spec.num_samples(split))
        if stop > start:
            bounds = ((start, *[0] * len(shape)), (stop - 1, *(size - 1 for size in shape)))
            sources.append((part.replace("%", "%%"), f"/{split}/{field.name}", bounds))
    return sources


def check_mappings(path: Path, num_parts: int) -> list[Fault]:
    """Return what is wrong with the virtual datasets of a file that refers to parts: they must map all of each part.

    Raises nothing on a file of any kind, and comes back within a limit of time.
    """
    faults: list[Fault] = []
    names = [f"{split}/{field.name}" for split in SPLITS for field in SAMPLE_FIELDS]
    while names:
        looked_at, found, failure = _run_child(path, names[0], _LIMIT_S + num_parts * _LIMIT_PER_PART_S)
        faults += found
        if failure is None:
            break
        failed = looked_at or names[0]
        faults.append(Fault(f"dataset {failed} is damaged (HDF5 {failure})", _REMEDY, where=failed))
        names = names[names.index(failed) + 1 :] if failed in names else []
    return faults


def _run_child(path: Path, first: str, limit_s: float) -> tuple[str, list[Fault], str | None]:
    """Check the datasets from `first` on; return the last that was begun, the faults, and how HDF5 failed, if so."""
    command = [sys.executable, "-c", _CHILD, str(path), first, *sys.path]
    failure = None
    try:
        done = subprocess.run(command, capture_output=True, timeout=limit_s, check=False, stdin=subprocess.DEVNULL)
        output = done.stdout
        if done.returncode < 0:
            failure = f"crashes on it, signal {-done.returncode}"
        elif done.returncode:
            said = (done.stderr.decode("utf-8", "replace").splitlines() or [""])[-1]
            failure = f"fails on it: {said[:200]}"
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        failure = "does not come to an end with it"
    looked_at, faults = "", []
    for line in output.decode("utf-8", "replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # cut off by the crash
            continue
        if isinstance(entry, str):
            looked_at = entry
        else:
            faults.append(Fault(*entry))
    return looked_at, faults, failure


def run_child(path: str, first: str) -> None:
    """Check the virtual datasets of a file from `first` on and write, as lines of JSON, the name of each, then faults.

    Raises:
        DataError: the file cannot be opened.
    """
    with open_hdf5(Path(path)) as file:
        header = read_header(file, [])
        if header is None:
            raise AssertionError("only files whose header is in order are looked at")
        names = [(split, field) for split in SPLITS for field in SAMPLE_FIELDS]
        begin = [f"{split}/{field.name}" for split, field in names].index(first)
        for split, field in names[begin:]:
            print(json.dumps(f"{split}/{field.name}"), flush=True)
            fault = _find_fault(file, header, split, field)
            if fault is not None:
                print(json.dumps([fault.what, fault.remedy, fault.where]), flush=True)


def _find_fault(file: Any, header: Header, split: str, field: Field) -> Fault | None:
    name = f"{split}/{field.name}"
    group = find_dataset(file, name, [])
    what = None
    try:
        # That there is no such dataset is told by the check of the structure.
        what = None if group is None else _check_dataset(group[field.name], header, split, field)
    except HDF5_ERRORS as error:
        what = f"is damaged ({first_line(error)})"
    return None if what is None else Fault(f"dataset {name} {what}", _REMEDY, where=name)


def _check_dataset(dataset: Any, header: Header, split: str, field: Field) -> str | None:
    if not isinstance(dataset, h5py.Dataset) or not dataset.is_virtual:
        return "is not virtual, though the file refers to parts"
    properties = dataset.id.get_create_plist()
    found = [_describe(properties, number) for number in range(properties.get_virtual_count())]
    if found != list_virtual_sources(header.spec, header.parts, split, field):
        return "does not refer to the parts in their order, to all of each"
    if not dataset.id.get_type().equal(h5py.h5t.py_create(np.dtype(field.dtype))):
        return f"has type {dataset.dtype}, not {field.dtype[1:]}"
    expected = (header.spec.num_samples(split), *field.row_shape(header.spec))
    return None if dataset.shape == expected else f"has shape {dataset.shape}, not {expected}"


def _describe(properties: Any, number: int) -> tuple[str, str, Bounds | None]:
    """Return the file, the dataset and the bounds of a mapping; no bounds if it leaves out anything on either side."""
    bounds = _get_box(properties.get_virtual_vspace(number))
    source = properties.get_virtual_srcspace(number)
    takes_all = source.get_select_type() == h5py.h5s.SEL_ALL
    if bounds is not None and not takes_all:
        low, high = bounds
        whole = tuple(0 for _ in low), tuple(last - start for start, last in zip(low, high, strict=True))
        takes_all = _get_box(source) == whole
    return (
        properties.get_virtual_filename(number),
        properties.get_virtual_dsetname(number),
        bounds if takes_all else None,
    )


def _get_box(space: Any) -> Bounds | None:
    """Return the first and last element of a selection that is a full box; None for any other."""
    low, high = space.get_select_bounds()
    bounds = tuple(map(int, low)), tuple(map(int, high))
    volume = math.prod(last - start + 1 for start, last in zip(*bounds, strict=True))
    return bounds if space.get_select_npoints() == volume else None
