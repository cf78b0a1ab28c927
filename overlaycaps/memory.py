"""What the system tells of this process's memory; needs no torch."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path


def current_memory_mib() -> float | None:
    """Return the resident size of this process, in MiB; None where the system does not tell."""
    if sys.platform == "linux":
        return _read_status("VmRSS")
    try:
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
        return int(shown.stdout) / 1024
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def peak_memory_mib() -> float | None:
    """Return the largest resident size that this process has had, in MiB; None where the system does not tell.

    The start of Python counts too.
    """
    if sys.platform == "linux":
        # Not ru_maxrss: a process inherits that from the one that started it, however large that one was.
        return _read_status("VmHWM")
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - exists on POSIX only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def forget_peak_memory() -> None:
    """Let the peak begin anew from what is in use now, where the system can (see proc(5), clear_refs)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _read_status(key: str) -> float | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    return None
