"""A file, or a folder of files, that appears under its name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from data_gen.errors import DataError


@contextlib.contextmanager
def replacing(path: Path, needed_bytes: int, *, force: bool) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it is flushed to disk and renamed to `path`.

    After any exception, including KeyboardInterrupt, the temporary file is gone and `path` is as it was.
    Temporary files that killed processes left for the same `path` are removed first.

    Raises:
        DataError: `path` exists and `force` is false, cannot be written here, or `needed_bytes` do not fit on
            the disk; also for every OSError in the body, e.g. a full disk.
    """
    check_target(path, force=force)
    target = Path(os.path.realpath(path))  # through a symbolic link: replace what it points to, keep the link
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with _explain_failures(path):
            _remove_stale(target)
            _check_space(target.parent, path, needed_bytes)
            yield temporary
            _flush(temporary)
            check_target(path, force=force)  # it may have appeared meanwhile
            temporary.replace(target)
            _flush(target.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_target(path: Path, *, force: bool) -> None:
    """Check that a file may be written to `path`.

    Raises:
        DataError: it exists (and `force` is false), is not a regular file, or its folder does not exist or is
            not writable.
    """
    with _explain_failures(path):
        _check_target(path, force)


def _check_target(path: Path, force: bool) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file name, such as {path / 'data.h5'}")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a regular file; choose another name")
    if path.exists() and not force:
        raise DataError(f"{path} exists; pass --force to replace it, or choose another name")
    _check_parent(path)


def _check_parent(path: Path) -> None:
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise DataError(f"{path} cannot be written: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DataError(f"{path} cannot be written: no permission to write in {folder}; choose another folder")


@contextlib.contextmanager
def replacing_folder(
    path: Path, needed_bytes: int, *, force: bool, check_former: Callable[[Path], None]
) -> Iterator[Path]:
    """Give a temporary folder, empty, beside `path`; on success it is flushed to disk and renamed to `path`.

    After any exception, including KeyboardInterrupt, the temporary folder is gone and `path` is as it was. What killed
    processes left for the same `path` is removed first. A folder that is there already is replaced only if it is empty,
    or if `force` is true and `check_former` raises nothing.

    Args:
        path: the folder; the folder that it is in must exist.
        needed_bytes: how much will be written.
        force: replace a folder that holds something.
        check_former: raises DataError for a folder with anything in it that must not be lost.

    Raises:
        DataError: as `check_folder_target`, or `needed_bytes` do not fit on the disk; also for every OSError in the
            body, e.g. a full disk.
    """
    check_folder_target(path, force=force, check_former=check_former)
    target = Path(os.path.realpath(path))
    # Both the new folder and, for a moment, the one that it replaces lie in one with a name that tells whose it is.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.partial")
    new, former = temporary / "new", temporary / "former"
    try:
        with _explain_failures(path):
            _remove_stale(target)
            _check_space(target.parent, path, needed_bytes)
            new.mkdir(parents=True)
            yield new
            if hasattr(os, "sync"):
                os.sync()  # one by one, thousands of small files would take minutes
            check_folder_target(path, force=force, check_former=check_former)  # it may have changed meanwhile
            try:
                if target.exists():
                    target.rename(former)
                new.rename(target)
            except BaseException:
                if former.exists() and not target.exists():
                    former.rename(target)
                raise
            _flush(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_folder_target(path: Path, *, force: bool, check_former: Callable[[Path], None]) -> None:
    """Check that a folder may be written to `path`; see `replacing_folder`.

    Raises:
        DataError: a folder with something in it is there (and `force` is false), or `check_former` raises it;
            something else is there; or the folder that it is to be in does not exist or is not writable.
    """
    with _explain_failures(path):
        target = Path(os.path.realpath(path))
        if os.path.lexists(target) and not target.is_dir():
            raise DataError(f"{path} is not a folder; choose another name")
        if target in (Path.cwd(), *Path.cwd().parents):
            raise DataError(f"{path} is the folder you are in, or it is above; give the name of a new folder")
        if target.is_dir() and any(target.iterdir()):
            check_former(path)
            if not force:
                raise DataError(f"{path} exists; pass --force to replace it, or choose another name")
        _check_parent(path)


def check_apart(path: Path, sources: Iterable[Path]) -> None:
    """Check that `path`, where something is to be written, is none of the files that it is made of.

    Raises:
        DataError: it is one of them.
    """
    with _explain_failures(path):
        target = os.path.realpath(path)
        for source in sources:
            if os.path.realpath(source) == target:
                raise DataError(f"{path} is a data file that is read for this; choose another name")


def reserve_space(path: Path, num_bytes: int) -> None:
    """Take `num_bytes` of disk for the existing file `path`, which grows to that size.

    A disk, quota or file size limit that is too small is then told before anything is written. HDF5 needs
    that: after a failed write it can neither close the file nor leave the process in peace. Where the system
    cannot reserve, this does nothing.

    Raises:
        OSError: there is not so much space.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    handle = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def _explain_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # of a progress line, not of the file
        raise
    except (OSError, RuntimeError) as error:  # h5py reports a failed close as a RuntimeError
        code = error.errno if isinstance(error, OSError) else None
        text = (str(error).splitlines() or [type(error).__name__])[0]
        if code == errno.ENOSPC or "No space left" in str(error):
            reason = "the disk is full; free some space or choose another folder"
        elif code == errno.EFBIG:
            reason = "files may not be that large here (see `ulimit -f`); raise the limit, or ask for fewer samples"
        elif code == errno.EDQUOT or "quota exceeded" in str(error):
            reason = "the disk quota is used up; free some space or choose another folder"
        else:
            reason = f"{os.strerror(code) if code else text}; check the disk or choose another folder"
        raise DataError(f"{path} cannot be written: {reason}") from error


def _check_space(folder: Path, path: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise DataError(
            f"{path} needs {needed_bytes / 2**20:,.0f} MiB, but the disk has {free_bytes / 2**20:,.0f} MiB free; "
            "free some space, choose another folder, or ask for fewer samples"
        )


def remove_stale(path: Path) -> None:
    """Remove the temporary files and folders for `path` whose process is gone.

    Raises:
        DataError: its folder cannot be read.
    """
    with _explain_failures(path):
        _remove_stale(Path(os.path.realpath(path)))


def _remove_stale(target: Path) -> None:
    pattern = re.compile(re.escape(f".{target.name}.") + r"(\d{1,18})\.partial")
    for file in target.parent.iterdir():
        match = pattern.fullmatch(file.name)
        if not match or _is_alive(int(match[1])):
            continue
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file, ignore_errors=True)
        elif not _is_locked(file):
            with contextlib.suppress(OSError):
                file.unlink()


def _is_alive(pid: int) -> bool:
    """Say whether another process `pid` runs on this machine; where that cannot be told, say yes."""
    if os.name != "posix":  # elsewhere os.kill would end the process
        return pid != os.getpid()
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _is_locked(file: Path) -> bool:
    """Say whether a writer holds `file`: on a shared disk it may run on another machine."""
    if os.name != "posix":
        return False
    import fcntl  # noqa: PLC0415 - exists on POSIX only

    try:
        with file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system, or the file is gone
        return False
    return False


def _flush(path: Path) -> None:
    if path.is_dir() and os.name != "posix":  # only POSIX lets a folder be opened
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems cannot flush a folder; the file itself is safe
            raise
    finally:
        os.close(handle)
