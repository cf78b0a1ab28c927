"""What the system tells of its processor; needs no torch."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def count_cores() -> int:
    """Return the number of cores that the process may run on, where the system tells it; else those there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_cpu_info() -> dict[str, list[str]]:
    """Return what Linux tells of the cores: the distinct values of every key, in order; nothing on other systems."""
    found: dict[str, list[str]] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            values = found.setdefault(key, [])
            if value not in values:
                values.append(value)
    return found


def name_processor() -> str:
    """Return the processor's name, as well as the system knows it."""
    return next(iter(read_cpu_info().get("model name", [])), platform.processor() or platform.machine())
