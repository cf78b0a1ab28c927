"""One process at a time trains into a run's folder: a lock that the system takes back when its holder ends, however."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from overlaycaps.errors import UserError
from overlaycaps.files import describe_write_failure

LOCK_NAME = "train.lock"
_TRIES = 5
_WAIT_S = 0.05

_Answer = Literal["taken", "held", "unknown"]


class RunInUseError(UserError):
    """Another process trains into the folder."""


@contextmanager
def lock_run(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder, which exists, while the block runs.

    Gives:
        Whether there is a lock: some network file systems have none.

    Raises:
        RunInUseError: if another process holds it; the message says which.
        UserError: if the file of the lock cannot be made.
    """
    path = folder / LOCK_NAME
    file = _take(path)
    if file is None:
        yield False
        return
    try:
        yield True
    finally:
        with file, contextlib.suppress(OSError):
            path.unlink()  # while it is still held, so that nobody else's is removed


def is_run_locked(folder: Path) -> bool:
    """Whether a process trains into the folder now, as far as the file system can tell."""
    try:
        # Not a pipe, which would not open until someone writes to it.
        if not (folder / LOCK_NAME).is_file():
            return False
        with (folder / LOCK_NAME).open(encoding="utf-8") as file:
            return _try_lock(file, shared=True) == "held"
    except OSError:  # there is no such file, or it is someone else's
        return False


def _take(path: Path) -> IO[str] | None:
    for _ in range(_TRIES):
        file = _open(path)
        answer = _try_lock(file)
        if answer == "taken" and _is_at(file, path):
            with contextlib.suppress(OSError):  # it is for people; on a full disk the lock holds as well
                file.truncate(0)
                file.write(json.dumps({"pid": os.getpid(), "host": platform.node()}))
                file.flush()
            return file
        file.close()
        if answer == "unknown":
            return None
        time.sleep(_WAIT_S)  # someone may only have asked whether it is held, or be about to go
    raise RunInUseError(f"{path.parent} is in use by {_describe_holder(path)}; wait for it to end, or stop it.")


def _open(path: Path) -> IO[str]:
    try:
        # A link in a folder from elsewhere must not lead to a file of the user's.
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise UserError(describe_write_failure(path, error)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path} is not a regular file; remove it.")
    return os.fdopen(handle, "r+", encoding="utf-8")


def _is_at(file: IO[str], path: Path) -> bool:
    """Whether the open file is still the one of that name: its last holder may have removed it just now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _describe_holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {int(holder['pid'])} on {str(holder['host'])[:80]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[str], shared: bool = False) -> _Answer:
        """Ask for the lock of a file, without waiting."""
        try:
            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return "held"
        return "taken"

else:
    import fcntl

    def _try_lock(file: IO[str], shared: bool = False) -> _Answer:
        """Ask for the lock of a file, without waiting."""
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        except OSError:
            return "unknown"
        return "taken"
