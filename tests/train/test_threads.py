"""How many threads: what is asked for, what the container allows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from overlaycaps.errors import UsageError
from overlaycaps.train import threads
from overlaycaps.train.threads import choose_num_threads, read_cpu_quota


class ControlGroups:
    """A made-up tree of control groups, and the list of a process's groups."""

    def __init__(self, folder: Path) -> None:
        self.process, self.root = folder / "cgroup", folder / "fs"

    def list(self, *lines: str) -> ControlGroups:
        self.process.write_text("".join(f"{line}\n" for line in lines))
        return self

    def limit(self, group: str, **files: str) -> ControlGroups:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / f"cpu.{name}").write_text(f"{text}\n")
        return self

    def read(self) -> float | None:
        return read_cpu_quota(self.process, self.root)


@pytest.fixture
def groups(tmp_path: Path) -> ControlGroups:
    return ControlGroups(tmp_path)


def test_a_quota_of_version_2_is_read(groups: ControlGroups) -> None:
    assert groups.list("0::/job").limit("job", max="150000 100000").read() == 1.5


def test_the_least_of_all_groups_above_counts(groups: ControlGroups) -> None:
    groups.list("0::/slice/job/task").limit("slice", max="200000 100000").limit("slice/job", max="400000 100000")
    assert groups.limit("slice/job/task", max="max 100000").read() == 2


def test_a_container_sees_its_own_limit_at_the_mount(groups: ControlGroups) -> None:
    assert groups.list("0::/host/path/that/is/not/here").limit("", max="300000 100000").read() == 3


def test_a_quota_of_version_1_is_read(groups: ControlGroups) -> None:
    groups.list("5:memory:/job", "4:cpu,cpuacct:/job", "0::/")
    groups.limit("cpu,cpuacct/job", cfs_quota_us="250000", cfs_period_us="100000")
    groups.limit("memory/job", cfs_quota_us="100000", cfs_period_us="100000")
    assert groups.read() == 2.5


@pytest.mark.parametrize("mount", ["cpuacct,cpu", "cpu,cpuacct", "cpu"])
def test_a_quota_of_version_1_is_read_wherever_it_is_mounted(mount: str, groups: ControlGroups) -> None:
    groups.list("4:cpuacct,cpu:/job").limit(f"{mount}/job", cfs_quota_us="250000", cfs_period_us="100000")
    if mount == "cpu,cpuacct":  # as systemd does where the kernel lists the two the other way round
        (groups.root / "cpu").symlink_to(mount)
    assert groups.read() == 2.5


def test_a_quota_of_version_2_is_read_beside_version_1(groups: ControlGroups) -> None:
    groups.list("1:memory:/", "0::/job").limit("unified/job", max="150000 100000")
    assert groups.read() == 1.5


@pytest.mark.parametrize(
    "files",
    [
        {"max": "max 100000"},
        {"max": "nonsense"},
        {"max": "100000 0"},
        {"max": ""},
        {"cfs_quota_us": "-1", "cfs_period_us": "100000"},
        {"cfs_quota_us": "100000"},
        {},
    ],
)
def test_no_limit_and_nonsense_are_no_quota(groups: ControlGroups, files: dict[str, str]) -> None:
    assert groups.list("0::/job", "1:cpu:/job").limit("job", **files).limit("cpu/job", **files).read() is None


def test_systems_without_control_groups_have_no_quota(groups: ControlGroups) -> None:
    assert groups.read() is None


def pretend(monkeypatch: pytest.MonkeyPatch, *, own: int, cores: int, quota: float | None, variable: str = "") -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(torch, "get_num_threads", lambda: own)
    monkeypatch.setattr(threads, "count_cores", lambda: cores)
    monkeypatch.setattr(threads, "read_cpu_quota", lambda: quota)


@pytest.mark.parametrize(
    ("own", "cores", "quota", "expected"),
    [
        (8, 16, None, 8),  # torch leaves out hyper-threads
        (8, 3, None, 3),
        (8, 16, 2.0, 2),
        (8, 16, 2.9, 2),
        (8, 16, 0.5, 1),
        (8, 16, 16.0, 8),
        (8, 3, 4.0, 3),
    ],
)
def test_threads_are_the_least_of_what_is_there_and_allowed(
    own: int, cores: int, quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, own=own, cores=cores, quota=quota)
    assert choose_num_threads(None) == expected
    assert choose_num_threads(5) == 5


@pytest.mark.parametrize(
    ("variable", "expected"), [("8", 8), (" 8", 8), ("8,2", 8), ("", 2), ("0", 2), ("-1", 2), ("many", 2)]
)
def test_the_users_own_variable_wins_over_the_quota_if_it_is_a_number(
    variable: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, own=8, cores=4, quota=2.0, variable=variable)
    assert choose_num_threads(None) == expected
    assert choose_num_threads(5) == 5


def test_less_than_one_thread_is_refused() -> None:
    with pytest.raises(UsageError, match="--threads 0: it must be at least 1"):
        choose_num_threads(0)
