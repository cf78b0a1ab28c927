from __future__ import annotations

import gzip
import lzma
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from data_gen.errors import DataError
from data_gen.idx import MAX_IDX_BYTES, parse_idx, read_idx
from tests.data_gen.sources import PACKERS, encode_idx

VALUES = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
RAW = encode_idx(VALUES)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "float32", "float64"])
def test_every_type_is_read_in_native_order(dtype: str) -> None:
    values = np.array([[1, -2, 3]]).astype(dtype)
    parsed = parse_idx(encode_idx(values), "x")
    assert parsed.dtype == values.dtype
    assert parsed.dtype.isnative
    assert np.array_equal(parsed, values)


@pytest.mark.parametrize("suffix", PACKERS)
def test_packing_is_told_by_content_not_by_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "digits.bin"
    path.write_bytes(PACKERS[suffix](RAW))
    assert np.array_equal(read_idx(path), VALUES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "only 0 bytes"),
        (b"\0\0\x08", "only 3 bytes"),
        (b"\x01" + RAW[1:], "not an IDX file"),
        (RAW[:2] + b"\x0a" + RAW[3:], "not an IDX file"),
        (RAW[:3] + b"\0" + RAW[4:], "0 dimensions"),
        (RAW[:3] + b"\xff" + RAW[4:], "255 dimensions"),
        (RAW[:10], "inside the IDX header"),
        (RAW[:-1], "too short (39 bytes): by its header (shape 2x3x4) it has 40 bytes"),
        (RAW + b"\0", "too long"),
        (b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "its header promises"),
        (b"<!DOCTYPE html><html>404</html>", "a web page"),
        (b"\xef\xbb\xbf\n <html>", "a web page"),
        (gzip.compress(b"<html>404</html>", mtime=0), "a web page"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (gzip.compress(gzip.compress(RAW, mtime=0), mtime=0), "compressed twice"),
        (gzip.compress(RAW, mtime=0)[:-9], "damaged or cut off"),
        (gzip.compress(RAW, mtime=0)[:-8] + b"\0" * 8, "damaged or cut off"),
        (lzma.compress(RAW)[:-20], "damaged or cut off"),
        (lzma.compress(RAW)[:20] + b"\xff" + lzma.compress(RAW)[21:], "damaged or cut off"),
    ],
)
def test_anything_else_is_refused_with_name_and_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert reason in message
    assert "again" in message or "unpack" in message or "git lfs pull" in message


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_bomb_is_not_unpacked(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_gen.idx.MAX_IDX_BYTES", 1000)
    path = tmp_path / "bomb"
    path.write_bytes(PACKERS[suffix](RAW + bytes(10_000_000)))
    with pytest.raises(DataError, match="too long"):  # by one byte: no more than that is unpacked
        read_idx(path)
    path.write_bytes(PACKERS[suffix](encode_idx(np.zeros(1000, np.uint8))))
    with pytest.raises(DataError, match="more than the 1,000 that are read"):
        read_idx(path)
    assert MAX_IDX_BYTES >= 600_000_000  # EMNIST ByClass must fit


def test_a_path_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="not a regular file"):
        read_idx(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_idx(tmp_path / "pipe")
