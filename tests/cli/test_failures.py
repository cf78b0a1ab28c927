"""What may fail although the command was right: the disk, the memory, the program itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import data_gen.sources
import overlaycaps.train.loop
import overlaycaps.train.step
from overlaycaps.metrics.multilabel import MultilabelScores
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.state import Position
from tests.cli.conftest import Cli, read_tree
from tests.data_gen.sources import make_source

TRAIN = ("train", "--size", "tiny", "--images", "192", "--cpu", "--name", "run")
GENERATE = ("generate", "--out", "new.h5", "--train", "60", "--valid", "20", "--test", "30")


@pytest.fixture(autouse=True)
def small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_gen.sources, "load_bundled", lambda: make_source(digit_px=28))


@pytest.fixture
def fail_sync(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that lets the n-th file, as it goes to the disk, fail with an error of the system."""
    sync = os.fsync

    def plan(call: int, code: int) -> None:
        count = 0

        def fail(handle: int) -> None:
            nonlocal count
            count += 1
            if count == call:
                raise OSError(code, os.strerror(code))
            sync(handle)

        monkeypatch.setattr(os, "fsync", fail)

    return plan


@contextmanager
def limit_files(num_bytes: int) -> Iterator[None]:
    """Let this process write no larger files: a real failure of a real write."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full; free some space"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EACCES, "choose"),
        (errno.EROFS, "choose another folder"),
    ],
    ids=["full", "quota", "permission", "read-only"],
)
@pytest.mark.parametrize(
    ("command", "name"), [(GENERATE, "new.h5"), (TRAIN, "config.json"), (("compare",), "report.md")]
)
def test_a_disk_that_fails_is_named_and_nothing_is_left(
    code: int,
    words: str,
    command: tuple[str, ...],
    name: str,
    desk: Path,
    trained_runs: Path,
    cli: Cli,
    fail_sync: Callable[[int, int], None],
) -> None:
    (desk / "runs").symlink_to(trained_runs)
    before, runs_before = read_tree(desk), read_tree(trained_runs)
    fail_sync(1, code)
    outcome = cli(*command)
    assert outcome.exit_code == 1
    assert name in outcome.error
    assert words in outcome.error
    assert read_tree(desk) == before
    assert read_tree(trained_runs) == runs_before


@pytest.mark.parametrize("command", [GENERATE, TRAIN, ("compare",)], ids=["generate", "train", "compare"])
def test_a_folder_that_may_not_be_written_is_named(
    command: tuple[str, ...],
    desk: Path,
    trained_runs: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: Path, mode: str = "r", *_arguments: object, **_more: object) -> object:
        if "w" in mode:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return open_(self, mode)

    open_, access = Path.open, os.access
    (desk / "runs").symlink_to(trained_runs)
    before, runs_before = read_tree(desk), read_tree(trained_runs)
    monkeypatch.setattr(os, "access", lambda path, mode, **_more: not mode & os.W_OK and access(path, mode))
    monkeypatch.setattr(Path, "open", refuse)
    outcome = cli(*command)
    assert outcome.exit_code == 1
    assert "permission" in outcome.error
    assert "choose" in outcome.error
    monkeypatch.undo()
    assert read_tree(desk) == before
    assert read_tree(trained_runs) == runs_before


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(("call", "name"), [(2, "best.pt"), (3, "last.pt"), (5, "last.pt"), (6, "result.json")])
def test_a_disk_that_fills_up_while_training_costs_no_saved_state(
    call: int, name: str, cli: Cli, fail_sync: Callable[[int, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every evaluation counts as the best so far: two files a time, after config.json and before result.json.
    monkeypatch.setattr(overlaycaps.train.loop, "_note_evaluation", remember_every_evaluation)
    fail_sync(call, errno.ENOSPC)
    outcome = cli(*TRAIN)
    assert outcome.exit_code == 1
    assert f"runs/run/{name} could not be written: the disk is full" in outcome.error
    names = set(read_tree(Path("runs/run")))
    assert "result.json" not in names
    assert not [name for name in names if name.startswith(".")], "nothing half-written"
    for state in names & {"best.pt", "last.pt"}:
        load_checkpoint(Path("runs/run") / state)
    if "last.pt" in names:
        assert cli("train", "--resume", "runs/run", "--cpu").exit_code == 0
    else:
        assert cli(*TRAIN, "--force").exit_code == 0


def remember_every_evaluation(at: Position, scores: MultilabelScores) -> bool:
    at.best_exact_match, at.best_epoch, at.best_scores = scores.exact_match.ratio, at.epochs_done, scores.to_dict()
    return True


@pytest.mark.parametrize(
    ("command", "num_bytes", "name", "left"),
    [
        (GENERATE, 100_000, "new.h5", set()),
        (TRAIN, 50_000, "best.pt", {"runs", "runs/run", "runs/run/config.json", "runs/run/failure.json"}),
    ],
    ids=["generate", "train"],
)
def test_a_write_that_fails_half_way_leaves_no_half(
    command: tuple[str, ...], num_bytes: int, name: str, left: set[str], desk: Path, cli: Cli
) -> None:
    with limit_files(num_bytes):
        outcome = cli(*command)
    assert outcome.exit_code == 1
    assert name in outcome.error
    assert "raise the limit" in outcome.error
    assert set(read_tree(desk)) == {"data.h5", *left}


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried to"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
    ids=["python", "cpu", "cuda"],
)
def test_too_little_memory_is_told_with_the_remedy(error: Exception, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(overlaycaps.train.step, "binary_cross_entropy_with_logits", fail)
    outcome = cli(*TRAIN)
    assert outcome.exit_code == 1
    assert "out of memory; choose a smaller --size, --batch-size" in outcome.error


@pytest.mark.usefixtures("desk")
def test_a_fault_of_the_program_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(overlaycaps.train.step, "binary_cross_entropy_with_logits", fail)
    with pytest.raises(RuntimeError, match="a fault"):
        cli(*TRAIN)
