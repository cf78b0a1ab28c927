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

import h5py
import numpy as np

from data_gen.errors import DataError, show_value
from data_gen.sharding import MAX_SHARDS, WHOLE, Shard
from data_gen.spec import OverlaySpec
from data_gen.store.faults import AGAIN, HDF5_ERRORS, Fault, first_line
from data_gen.store.format import FORMAT_NAME, FORMAT_VERSION, FORMAT_VERSION_DTYPE, PARTS_ATTRIBUTE

MAX_SOURCE_NAME_CHARS = 255

_MAX_PARTS_BYTES = 20_000_000
_MAX_TEXT_BYTES = 2**16
_MAX_NAME_BYTES = 2**8


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


class ForeignError(Exception):
    """The file is not of this format, or of another version of it."""


class _Refusal(Exception):
    """Carries a fault to where faults are collected."""

    def __init__(self, what: str, remedy: str = AGAIN) -> None:
        super().__init__(what)
        self.fault = Fault(what, remedy)


def read_header(file: Any, faults: list[Fault]) -> Header | None:
    """Return the root attributes of an open file, and add to `faults` what is wrong with them.

    A wrong digest or name is left empty; without a spec, a shard or a list of parts that can be read, None is returned.

    Raises:
        ForeignError: the file has another format, or another version of it.
    """
    try:
        _check_format(file)
    except _Refusal as refusal:
        raise ForeignError(str(refusal.fault)) from refusal
    values: dict[str, Any] = {}
    for attribute, read in _READERS.items():
        try:
            values[attribute] = read(file, attribute)
        except _Refusal as refusal:
            faults.append(refusal.fault)
    if any(name not in values for name in ("spec", "shard", PARTS_ATTRIBUTE)):
        return None
    if values[PARTS_ATTRIBUTE] and values["shard"] != WHOLE:
        faults.append(Fault("refers to parts and is a part itself"))
        return None
    return Header(
        spec=values["spec"],
        spec_json=_read_text(file, "spec"),
        digit_source_name=values.get("digit_source", ""),
        digit_source_digest=values.get("digit_source_digest", ""),
        shard=values["shard"],
        content_digest=values.get("content_digest", ""),
        parts=values[PARTS_ATTRIBUTE],
    )


def _check_format(file: Any) -> None:
    """Refuse other programs' files, and other versions than the one that is read."""
    foreign = _Refusal("an HDF5 file, but not one that `overlaycaps generate` wrote", "give one it wrote")
    try:
        # Version 1 had a text of variable length here, which is not read.
        kind = _open_attribute(file, "format", _MAX_NAME_BYTES).get_type()
        is_first = kind.get_class() == h5py.h5t.STRING and kind.is_variable_str()
        is_known = is_first or _read_text(file, "format", _MAX_NAME_BYTES) == FORMAT_NAME
    except (_Refusal, *HDF5_ERRORS):
        is_first = is_known = False
    if not is_known:
        raise foreign
    version = _read_version(file)
    if version > FORMAT_VERSION:
        known = f"has format version {version}, this program reads {FORMAT_VERSION}"
        raise _Refusal(known, "upgrade overlaycaps")
    if version < FORMAT_VERSION:
        known = f"has format version {version}, which this program no longer reads"
        raise _Refusal(known, f"{AGAIN}: the same options give the same images")
    if is_first:
        raise foreign


def _open_attribute(file: Any, name: str, max_bytes: int) -> Any:
    """Return a scalar attribute, unread; nothing of another size is ever read."""
    try:
        is_there = name in file.attrs
        attribute: Any = file.attrs.get_id(name) if is_there else None
        is_single = is_there and attribute.shape == () and attribute.get_type().get_size() <= max_bytes
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attribute {name} is damaged ({first_line(error)})") from error
    if not is_there:
        raise _Refusal(f"the attribute {name} is missing")
    if not is_single:
        raise _Refusal(f"the attribute {name} is not a single value of at most {max_bytes:,} bytes")
    return attribute


def _read_version(file: Any) -> int:
    attribute = _open_attribute(file, "format_version", 8)
    if not attribute.get_type().equal(h5py.h5t.py_create(np.dtype(FORMAT_VERSION_DTYPE))):
        raise _Refusal("the attribute format_version is not an integer of 64 bits, little-endian")
    try:
        return int(file.attrs["format_version"])
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attribute format_version is damaged ({first_line(error)})") from error


def _read_text(file: Any, name: str, max_bytes: int = _MAX_TEXT_BYTES) -> str:
    attribute = _open_attribute(file, name, max_bytes)
    try:
        kind = attribute.get_type()
        # Of variable length, it would be looked up in a heap, where HDF5 can be led astray; it is not even tried.
        is_text = kind.get_class() == h5py.h5t.STRING and not kind.is_variable_str()
        if not is_text or kind.get_cset() != h5py.h5t.CSET_UTF8:
            raise _Refusal(f"the attribute {name} is not a text of fixed length in UTF-8")
        return bytes(file.attrs[name]).decode()
    except UnicodeError as error:
        raise _Refusal(f"the attribute {name} is not UTF-8") from error
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attribute {name} is damaged ({first_line(error)})") from error


def _read_name(file: Any, name: str) -> str:
    text = _read_text(file, name)
    if not 1 <= len(text) <= MAX_SOURCE_NAME_CHARS or not text.isprintable():
        raise _Refusal(
            f"the attribute {name} is {show_value(text)}, not a name of 1 to {MAX_SOURCE_NAME_CHARS} printable "
            "characters"
        )
    return text


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
        shard = Shard.parse(text)
    except DataError:
        raise _Refusal(f"the attribute shard is {show_value(text)}, no part of a dataset") from None
    if str(shard) != text:
        raise _Refusal(f"the attribute shard is {show_value(text)} and not {shard}")
    return shard


def _read_parts(file: Any, name: str) -> tuple[str, ...]:
    """Return the files that a file refers to; none if it holds its samples itself."""
    try:
        if name not in file.attrs:
            return ()
    except HDF5_ERRORS as error:
        raise _Refusal(f"the attributes are damaged ({first_line(error)})") from error
    text = _read_text(file, name, _MAX_PARTS_BYTES)
    try:
        parts = json.loads(text)
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
    "digit_source": _read_name,
    "digit_source_digest": _read_digest,
    "shard": _read_shard,
    "content_digest": _read_digest,
    PARTS_ATTRIBUTE: _read_parts,
}


def is_allowed(char: str) -> bool:
    """Say whether the name of a part may have a character: one that no system takes for something else."""
    return char.isprintable() and char not in "\\:"


def is_inside(part: str) -> bool:
    """Say whether a path in POSIX form is relative and stays below where it starts."""
    path = PurePosixPath(part)
    is_plain = all(map(is_allowed, part)) and part == str(path)
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
