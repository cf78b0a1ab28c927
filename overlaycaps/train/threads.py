"""How many threads a run computes with on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from overlaycaps.errors import UsageError
from overlaycaps.processor import count_cores

_SELF = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def choose_num_threads(asked: int | None) -> int:
    """Return the number of threads to use.

    What is asked for wins; then ``OMP_NUM_THREADS``, which torch heeds by itself. Otherwise it is torch's own choice
    (one for each physical core), but no more than the cores that the process may use by now, and no more than the CPU
    quota of its container, which torch does not know: threads beyond it only wait for each other.

    Raises:
        UsageError: if less than one thread is asked for.
    """
    if asked is not None:
        if asked < 1:
            raise UsageError(f"--threads {asked}: it must be at least 1.")
        return asked
    own = torch.get_num_threads()
    if _is_count(os.environ.get("OMP_NUM_THREADS", "")):
        return own
    quota = read_cpu_quota()
    return max(1, min(own, count_cores(), own if quota is None else int(quota)))


def read_cpu_quota(process: Path = _SELF, root: Path = _ROOT) -> float | None:
    """Return the CPUs that the control groups of this process allow it, or nothing if they set no limit.

    Every group from the process's own to the root may set one; the least counts. Both versions of control groups are
    read, see cgroups(7): ``cpu.max`` of version 2, ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us`` of version 1.

    Args:
        process: the list of the process's groups.
        root: where the groups are mounted.
    """
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        # What is listed as `cpuacct,cpu` may be mounted as `cpu,cpuacct`, with a link `cpu`; version 2 is mounted one
        # level below where version 1 stands beside it.
        for mount in (root / controllers, root / "cpu") if controllers else (root, root / "unified"):
            group = mount / path.strip("/")
            # In a container the path may be that of the host; its own limit then stands at the mount.
            for folder in {mount, *(parent for parent in (group, *group.parents) if parent.is_relative_to(mount))}:
                quota = _read_quota_of_group(folder)
                if quota is not None:
                    quotas.append(quota)
    return min(quotas, default=None)


def _read_quota_of_group(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        share = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max"
        return None
    return share if share > 0 else None


def _is_count(variable: str) -> bool:
    # A list gives a number for each level of nesting; what is no number OpenMP ignores, and so does this.
    first = variable.partition(",")[0].strip()
    return first.isdecimal() and int(first) > 0
