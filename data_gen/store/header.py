"""The root attributes of a file; what they declare is checked before it is believed.

A file that refers to parts is read part by part, each found beside the file or in folders below it; HDF5 itself is
never left to find one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from data_gen.errors import DataError, show_value
from data_gen.sharding import MAX_SHARDS, WHOLE, Shard
from data_gen.spec import OverlaySpec
from data_gen.store.faults import AGAIN, HDF5_ERRORS, Fault, first_line
from data_gen.store.format import FORMAT_NAME, FORMAT_VERSION, PARTS_ATTRIBUTE

_MAX_PARTS_CHARS = 20_000_000
_MAX_VALUE_BYTES = 2**16


@dataclass(frozen=True)
class Header:
    """The root attributes of a file; `parts` are the paths of the files that hold its samples, relative to it."""

    spec: OverlaySpec
    spec_json: str
    digit_source_name: str
    digit_source_digest: str
    shard: Shard
    content_digest: str
    parts: tuple[str, ...]


class _Refusal(Exception):
    """Carries a fault to where faults are collected."""

    def __init__(self, what: str, remedy: str = AGAIN) -> None:
        super().__init__(what)
        self.fault = Fault(what, remedy)


def read_header(file: Any, faults: list[Fault]) -> Header | None:
    """Return the root attributes of an open file, or None and add to `faults` what is wrong with them."""
    try:
        _check_format(file)
    except _Refusal as refusal:
        faults.append(refusal.fault)
        return None
    values: dict[str, Any] = {}
    for attribute, read in _READERS.items():
        try:
            values[attribute] = read(file, attribute)
        except _Refusal as refusal:
            faults.append(refusal.fault)
    if not faults and values[PARTS_ATTRIBUTE] and values["shard"] != WHOLE:
        faults.append(Fault("refers to parts and is a part itself"))
    if faults:
        return None
    return Header(
        spec=values["spec"],
        spec_json=_read_attribute(file, "spec", str),
        digit_source_name=values["digit_source"],
        digit_source_digest=values["digit_source_digest"],
        shard=values["shard"],
        content_digest=values["content_digest"],
        parts=values[PARTS_ATTRIBUTE],
    )


def _check_format(file: Any) -> None:
    """Refuse other programs' files, and other versions than the one that is read."""
    try:
        name = _read_attribute(file, "format", str)
    except _Refusal:
        name = None
    if name != FORMAT_NAME:
        raise _Refusal("an HDF5 file, but not one that `overlaycaps generate` wrote", "give one it wrote")
    version = _read_attribute(file, "format_version", np.integer)
    if version > FORMAT_VERSION:
        known = f"has format version {version}, this program reads {FORMAT_VERSION}"
        raise _Refusal(known, "upgrade overlaycaps")
    if version < FORMAT_VERSION:
        known = f"has format version {version}, which this program no longer reads"
        raise _Refusal(known, f"{AGAIN}: the same options give the same images")


def _read_attribute(file: Any, name: str, kind: type) -> Any:
    """Return a scalar attribute of a type; nothing of another size is ever read."""
    try:
        is_there = name in file.attrs
        attribute: Any = file.attrs.get_id(name) if is_there else None
        is_single = is_there and attribute.shape == () and attribute.dtype.itemsize <= _MAX_VALUE_BYTES
        value = file.attrs[name] if is_single else None
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attribute {name} is damaged ({first_line(error)})") from error
    if not is_there:
        raise _Refusal(f"the attribute {name} is missing")
    if not is_single:
        raise _Refusal(f"the attribute {name} is not a single value")
    if not isinstance(value, kind):
        raise _Refusal(f"the attribute {name} has the wrong type ({type(value).__name__})")
    return value


def _read_text(file: Any, name: str) -> str:
    return str(_read_attribute(file, name, str))


def _read_digest(file: Any, name: str) -> str:
    text = _read_text(file, name)
    if re.fullmatch("[0-9a-f]{64}", text) is None:
        raise _Refusal(f"the attribute {name} is no sha256 in hex")
    return text


def _read_spec(file: Any, name: str) -> OverlaySpec:
    try:
        return OverlaySpec.from_json(_read_text(file, name))
    except DataError as error:
        raise _Refusal(f"its spec is refused: {str(error).removesuffix('; ' + AGAIN)}") from error


def _read_shard(file: Any, name: str) -> Shard:
    text = _read_text(file, name)
    try:
        return Shard.parse(text)
    except DataError:
        raise _Refusal(f"the attribute shard is {show_value(text)}, no part of a dataset") from None


def _read_parts(file: Any, name: str) -> tuple[str, ...]:
    """Return the files that a file refers to; none if it holds its samples itself."""
    try:
        if name not in file.attrs:
            return ()
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attributes are damaged ({first_line(error)})") from error
    text = _read_text(file, name)
    try:
        parts = json.loads(text) if len(text) <= _MAX_PARTS_CHARS else None
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_SHARDS:
        raise _Refusal(f"the attribute {name} is no list of file names in JSON")
    for part in parts:
        if not isinstance(part, str) or not is_inside(part):
            what = f"the part {show_value(part)} is not in the file's own folder, and is not followed"
            raise _Refusal(what, "merge the parts again")
    if len(set(parts)) != len(parts):
        raise _Refusal(f"the attribute {name} names a file twice")
    return tuple(parts)


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "spec": _read_spec,
    "digit_source": _read_text,
    "digit_source_digest": _read_digest,
    "shard": _read_shard,
    "content_digest": _read_digest,
    PARTS_ATTRIBUTE: _read_parts,
}


def is_inside(part: str) -> bool:
    """Say whether a path in POSIX form is relative and stays below where it starts."""
    path = PurePosixPath(part)
    is_plain = part.isprintable() and "\\" not in part and ":" not in part and part == str(path)
    return is_plain and not path.is_absolute() and ".." not in path.parts and part not in ("", ".")


def locate_part(path: Path, part: str) -> Path:
    """Return where a part of the file `path` lies.

    Raises:
        DataError: it is reached only by leaving the file's folder, through a symbolic link, or it is not there.
    """
    folder = path.resolve().parent
    found = path.parent / part
    if not found.resolve().is_relative_to(folder):
        raise DataError(f"{path}: its part {part} is a link out of the file's folder, which is not followed; copy it")
    if not found.is_file():
        raise DataError(
            f"{path}: its part {part} is missing; keep the parts where they were when they were merged, or use "
            "`overlaycaps merge --copy`"
        )
    return found
