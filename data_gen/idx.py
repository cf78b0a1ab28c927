"""IDX files (the format of MNIST) to arrays, plain or compressed, with every size checked before it is used.

An IDX file is: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32,
then the values, big-endian, in C order (http://yann.lecun.com/exdb/mnist/).
"""

from __future__ import annotations

import gzip
import lzma
import math
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from data_gen.errors import DataError

MAX_IDX_BYTES = 1 << 30
"""Largest uncompressed file that is read: the largest known source, EMNIST ByClass, has 547 MB."""

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_DIMS = 4
_MAX_HEADER_BYTES = 4 + 4 * _MAX_DIMS
_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` needs 65 MiB; a hostile header can ask for gigabytes
_AGAIN = "download the file again"


class _Header:
    """Type and shape of an IDX file, checked for plausibility, not yet against its length."""

    def __init__(self, head: bytes, name: str) -> None:
        _refuse_other_formats(head, name)
        if len(head) < 4:
            raise DataError(f"{name}: only {len(head)} bytes long, too short for an IDX file; {_AGAIN}")
        zeros, code, num_dims = head[:2], head[2], head[3]
        if zeros != b"\0\0" or code not in _DTYPES:
            start = head[:4].hex(" ")
            raise DataError(f"{name}: not an IDX file (it starts with the bytes {start}); {_AGAIN}")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise DataError(f"{name}: {num_dims} dimensions instead of 1 to {_MAX_DIMS}; {_AGAIN}")
        self.num_bytes = 4 + 4 * num_dims
        if len(head) < self.num_bytes:
            raise DataError(f"{name}: ends inside the IDX header; {_AGAIN}")
        self.shape: tuple[int, ...] = struct.unpack(f">{num_dims}I", head[4 : self.num_bytes])
        self.dtype = np.dtype(_DTYPES[code])
        self.total_bytes = self.num_bytes + math.prod(self.shape) * self.dtype.itemsize
        if self.total_bytes > MAX_IDX_BYTES:
            raise DataError(
                f"{name}: its header promises {self.total_bytes:,} bytes (shape {_show_shape(self.shape)}), "
                f"more than the {MAX_IDX_BYTES:,} that are read; {_AGAIN}, or split it"
            )


def parse_idx(data: bytes, name: str) -> NDArray[np.generic]:
    """Return the array in `data`, the uncompressed bytes of an IDX file, in native byte order and read-only.

    Args:
        data: the whole file.
        name: the file's name, for messages.

    Raises:
        DataError: wrong magic, type code, number of dimensions or length; or the bytes are something else,
            such as a web page. The message names the file, the reason and the remedy.
    """
    header = _Header(data[:_MAX_HEADER_BYTES], name)
    if len(data) != header.total_bytes:
        length = f"too short ({len(data):,} bytes)" if len(data) < header.total_bytes else "too long"
        raise DataError(
            f"{name}: {length}: by its header (shape {_show_shape(header.shape)}) it has "
            f"{header.total_bytes:,} bytes; {_AGAIN}"
        )
    values = np.frombuffer(data, dtype=header.dtype, offset=header.num_bytes).reshape(header.shape)
    return values.astype(header.dtype.newbyteorder("="), copy=False)


def read_idx(path: str | os.PathLike[str]) -> NDArray[np.generic]:
    """Return the array in the IDX file `path`; raw, gzip or xz, told apart by the file's first bytes.

    Raises:
        DataError: as `parse_idx`, or the file cannot be read or unpacked.
    """
    return parse_idx(read_idx_bytes(path), os.fspath(path))


def read_idx_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the uncompressed bytes of the IDX file `path`, at most one byte more than its header promises.

    Never unpacks more than that byte, so a small file cannot fill the memory. `parse_idx` refuses the extra
    byte.

    Raises:
        DataError: the file cannot be read or unpacked, or does not start like an IDX file.
    """
    name = os.fspath(path)
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # opening a named pipe would wait for ever
            raise DataError(f"{name}: not a regular file; give the IDX file itself")
        with Path(path).open("rb") as file:
            return unpack_idx(file, name)
    except FileNotFoundError:
        raise DataError(f"{name}: no such file; check the path") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error}); check the file") from None


def unpack_idx(file: BinaryIO, name: str) -> bytes:
    """Return the uncompressed bytes of an open IDX file; rules and errors as for `read_idx_bytes`."""
    magic = file.read(6)
    file.seek(0)
    stream: _Readable
    if magic.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=file)
    elif magic == b"\xfd7zXZ\0":
        stream = _XzStream(file)
    else:
        stream = file
    try:
        head = stream.read(_MAX_HEADER_BYTES)
        header = _Header(head, name)
        return head + stream.read(max(0, header.total_bytes + 1 - len(head)))
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{name}: damaged or cut off inside its compression ({error}); {_AGAIN}") from None


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _XzStream:
    """Reads an xz file with a memory limit, which `lzma.LZMAFile` cannot set."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    def read(self, size: int, /) -> bytes:
        parts: list[bytes] = []
        while size > 0 and not self._unpacker.eof:
            packed = self._file.read(1 << 16) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not packed:
                raise EOFError("the end-of-stream marker is missing")
            part = self._unpacker.decompress(packed, max_length=size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _refuse_other_formats(head: bytes, name: str) -> None:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        raise DataError(f"{name}: a web page, not an IDX file; the download link was wrong or dead: {_AGAIN}")
    if head.startswith(b"version https:/"):
        raise DataError(f"{name}: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`")
    for magic, kind in ((b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"(\xb5/\xfd", "zstandard")):
        if head.startswith(magic):
            raise DataError(f"{name}: a {kind} archive; unpack it first (only .gz and .xz are read directly)")
    if head.startswith((b"\x1f\x8b", b"\xfd7zXZ")):
        raise DataError(f"{name}: compressed twice; unpack it once")


def _show_shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)
