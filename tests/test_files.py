"""Files appear whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

import pytest

from overlaycaps.errors import UserError
from overlaycaps.files import write_atomically, write_text_atomically


def fail_half_way(error: BaseException) -> object:
    def write(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    return write


def test_text_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text_atomically(path, "one")
    write_text_atomically(path, "zwei: ½")
    assert path.read_text(encoding="utf-8") == "zwei: ½"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UserError, r"a\.txt could not be written: the disk is full"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
        (RuntimeError("torch gave up"), RuntimeError, "torch gave up"),
    ],
)
def test_a_failure_leaves_the_old_file_and_nothing_else(
    error: BaseException, raised: type[BaseException], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(raised, match=message):
        write_atomically(path, fail_half_way(error))  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none/a\.txt could not be written"):
        write_text_atomically(tmp_path / "none" / "a.txt", "x")
