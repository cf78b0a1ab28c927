"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from overlaycaps.errors import UserError

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "files may not be that large here (see `ulimit -f`); raise the limit",
    errno.EACCES: "permission denied; choose a place that you may use",
    errno.EPERM: "the system does not permit it; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "a file stands where a folder is needed; choose another folder",
    errno.EISDIR: "a folder of that name is there; move it away, or choose another place",
    errno.ELOOP: "a link stands where a file is needed; remove it",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}
_NO_FOLDER = "there is no such folder; create it first, or choose another"


def write_atomically(path: Path, write: Callable[[BinaryIO], object], former: Path | None = None) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then rename it to ``path``.

    Whatever goes wrong, what was at ``path`` is still there (or, in the moment between two renames, at ``former``), and
    the temporary file is removed.

    Args:
        path: the file to write.
        write: what fills it.
        former: the name that the file which was there gets, if it is to be kept.

    Raises:
        UserError: if the file cannot be written; it names the file, the reason and a remedy.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if former is not None and path.exists():
            path.replace(former)
        temporary.replace(path)
    except OSError as error:
        raise UserError(describe_write_failure(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """Write UTF-8 text with :func:`write_atomically`; what UTF-8 lacks (in odd file names) becomes ``?``."""
    write_atomically(path, lambda file: file.write(text.encode(errors="replace")))


def describe_write_failure(path: Path, error: OSError) -> str:
    """Return one line: what could not be written, why, and what to do."""
    known = {**_REMEDIES, errno.ENOENT: _NO_FOLDER}
    reason = known.get(error.errno or 0, error.strerror or str(error))
    return f"{path} could not be written: {reason}."


def describe_failure(error: OSError) -> str:
    """Return one line for a failed use of a file that no one closer to it explained."""
    reason = _REMEDIES.get(error.errno or 0, error.strerror or str(error))
    return f"{error.filename}: {reason}." if error.filename else f"input or output failed: {reason}."
