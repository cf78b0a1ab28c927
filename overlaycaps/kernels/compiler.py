"""Compiles the package's C source once per machine and keeps the library."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from overlaycaps.processor import read_cpu_info

_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
# The processor's own instructions; compilers differ in how they are asked for them. The last resort is none of them.
_TUNINGS = (("-march=native",), ("-mcpu=native",), ())
_TIMEOUT_S = 60


class CompilationError(Exception):
    """The library could not be made; the message is the reason, in a few words."""


def compile_library(source: Path) -> Path:
    """Return the shared library made from a C file, compiled now or before.

    Libraries are kept under ``$XDG_CACHE_HOME/overlaycaps`` (``~/.cache/overlaycaps``), by what they depend on: the
    source, the flags and the processor. A library is written under another name and renamed, with its SHA-256 beside
    it; one that does not fit its digest is made again. If the folder cannot be written, a temporary one is used.

    Raises:
        CompilationError: if there is no C compiler, or it fails.
    """
    key = _digest(source.read_bytes(), repr((_FLAGS, _TUNINGS)).encode(), _describe_processor().encode())[:16]
    for folder in (_cache_folder(), _temporary_folder()):
        library = folder / f"{source.stem}-{key}.so"
        if _is_intact(library):
            return library
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _compile(source, library)
            return library
    raise CompilationError("no folder can be written")


def _compile(source: Path, library: Path) -> None:
    compiler = _find_compiler()
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made = Path(scratch) / library.name
        reason = ""
        for tuning in _TUNINGS:
            command = [*compiler, *_FLAGS, *tuning, "-o", str(made), str(source)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired as error:
                raise CompilationError(f"{compiler[0]} took more than {_TIMEOUT_S} s") from error
            except OSError as error:
                raise CompilationError(f"{compiler[0]} could not be run: {error.strerror}") from error
            if done.returncode == 0 and made.is_file():
                digest = Path(scratch) / "digest"
                digest.write_text(_digest(made.read_bytes()))
                made.replace(library)
                digest.replace(_digest_file(library))
                return
            reason = (done.stderr.strip().splitlines() or ["no message"])[0]
        raise CompilationError(f"{compiler[0]} failed: {reason}")


def _find_compiler() -> list[str]:
    wanted = os.environ.get("CC", "").split()
    if wanted:
        return wanted
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found:
            return [found]
    raise CompilationError("no C compiler (cc, gcc or clang) is installed")


def _cache_folder() -> Path:
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "overlaycaps"
    except RuntimeError:  # a user without a home
        return _temporary_folder()


@cache
def _temporary_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"overlaycaps-{os.getpid()}-{secrets.token_hex(8)}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_intact(library: Path) -> bool:
    # Loading a file that was cut short would end the process, not raise.
    try:
        return _digest(library.read_bytes()) == _digest_file(library).read_text()
    except (OSError, ValueError):
        return False


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _describe_processor() -> str:
    """Return what tells processors apart that need libraries of their own; home folders are shared in clusters."""
    known = read_cpu_info()
    cores = [known.get(key) for key in ("flags", "Features", "model name", "CPU part")]
    return repr((platform.system(), platform.machine(), platform.processor(), cores))


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()
