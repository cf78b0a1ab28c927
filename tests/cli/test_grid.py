"""Many runs by one command: what is finished is skipped, what was stopped or killed goes on, no run costs another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train import grid
from overlaycaps.train.checkpoint import load_checkpoint
from tests.cli.conftest import Cli, read_tree, run_to_end
from tests.cli.test_interrupts import read_outcome
from tests.cli.test_processes import COMMAND, make_environment

PROC = Path("/proc")
needs_proc = pytest.mark.skipif(not (PROC / "self/stat").exists(), reason="there is no /proc here")
DEADLINE_S = 60

FEW = ("--size", "tiny", "--cpu", "--threads", "1", "--images", "96")
# Ten epochs: long enough to be hit in the middle.
MANY = ("--size", "tiny", "--cpu", "--threads", "1", "--images", "960", "--batch-size", "16")
CAPS, CNN = (f"{model}-tiny-960-batch16-seed0" for model in ("caps", "cnn"))
GRID = ("train", "--models", "caps,cnn", *MANY)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cells have no process of their own, which takes seconds to start."""
    monkeypatch.setattr(grid, "run_cell_apart", grid.run_cell)


@pytest.fixture(scope="module")
def whole(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs that nobody stopped; tests must not change them."""
    runs = tmp_path_factory.mktemp("whole")
    for model in ("caps", "cnn"):
        run_to_end("--model", model, "--data", small_data, "--runs", runs, *MANY[3:])
    return runs


def check_equals(folder: Path, whole: Path) -> None:
    """Check that a run is, bit for bit, the one that nobody stopped."""
    assert read_outcome(folder) == read_outcome(whole)
    ours, theirs = (load_checkpoint(path / "last.pt")["model"] for path in (folder, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def find_cell(parent: int) -> int | None:
    """Return the id of the process that a grid's process has started for a cell, if there is one."""
    for folder in PROC.glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if int(state[1]) == parent and b"spawn_main" in words:
            return int(folder.name)
    return None


def is_alive(process: int) -> bool:
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        if process is not None and process.poll() is not None:
            pytest.fail("the process has ended:\n" + "".join(process.communicate()))
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def start(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A real process in a group of its own, as a shell at a terminal would start it."""
    with subprocess.Popen(
        [*COMMAND, *words],
        env=make_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.usefixtures("desk", "in_this_process")
def test_a_grid_makes_every_cell_and_then_has_nothing_to_do(cli: Cli) -> None:
    words = ("train", "--models", "caps,cnn", "--seeds", "0-1", *FEW)
    done = cli(*words)
    assert done.exit_code == 0
    cells = [(model, seed) for seed in (0, 1) for model in ("caps", "cnn")]
    for line, (model, seed) in zip(done.stdout.splitlines(), cells, strict=True):
        assert line.startswith(f"{model} seed {seed}: finished, {model}-tiny-96-seed{seed}: test exact match ")
    folders = {f"{model}-tiny-96-seed{seed}" for model, seed in cells}
    assert {folder.name for folder in Path("runs").iterdir()} == folders
    for model, seed in cells:
        result = json.loads(Path(f"runs/{model}-tiny-96-seed{seed}/result.json").read_text())
        assert (result["model"]["name"], result["training"]["seed"]) == (model, seed)
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}

    again = cli(*words)
    assert again.exit_code == 0
    assert again.stdout.splitlines() == [
        f"{model} seed {seed}: skipped, runs/{model}-tiny-96-seed{seed} is finished" for model, seed in cells
    ]
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before

    assert cli(*words, "--force").stdout.count(": finished, ") == 4
    after = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    assert after.keys() == before.keys()
    assert all(after[path] > before[path] for path in before if path.suffix in (".pt", ".json", ".jsonl"))


@pytest.mark.usefixtures("desk", "in_this_process")
def test_another_run_in_a_folder_fails_its_cell_alone(cli: Cli) -> None:
    assert cli("train", "--model", "caps", *FEW, "--lr", "0.1", "--name", "caps-tiny-96-seed0").exit_code == 0
    before = read_tree(Path("runs/caps-tiny-96-seed0"))
    done = cli("train", "--models", "caps,cnn", *FEW)
    assert done.exit_code == 1
    first, second = done.stdout.splitlines()
    assert first.startswith("caps seed 0: failed, runs/caps-tiny-96-seed0 holds another run")
    assert second.startswith("cnn seed 0: finished, ")
    assert "1 of 2 runs failed" in done.error
    assert read_tree(Path("runs/caps-tiny-96-seed0")) == before


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--models", "caps", "--name", "run"], "--name: "),
        (["--seeds", "0-1", "--name", "run"], "--name: "),
        (["--models", "caps,cnn", "--model", "caps"], "--model and --models exclude each other"),
        (["--seeds", "0-1", "--seed", "0"], "--seed and --seeds exclude each other"),
        (["--seeds", "0-1", "--resume", "runs/x"], "--resume continues a run as it was begun"),
        (["--models", "caps", "--resume", "runs/x"], "--resume continues a run as it was begun"),
        (["--seeds", "4-0"], "--seeds 4-0: write numbers and ranges"),
        (["--seeds", ""], "--seeds : write numbers and ranges"),
        (["--models", "caps,"], "--models 'caps,': write names"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_of_one_run_are_refused_for_several(more: list[str], told: str, desk: Path, cli: Cli) -> None:
    before = read_tree(desk)
    refused = cli("train", *more)
    assert refused.exit_code == 2
    assert told in refused.error
    assert refused.stderr.splitlines() == [refused.error]
    assert read_tree(desk) == before


@needs_proc
@pytest.mark.usefixtures("desk")
def test_a_killed_cell_costs_no_other_and_goes_on(whole: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(*GRID) as process:
        wait_until(Path("runs", CAPS, "last.pt").exists, process)
        cell = find_cell(process.pid)
        assert cell is not None
        os.kill(cell, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert not Path("runs", CAPS, "result.json").exists(), "it was not hit in the middle"
    assert process.returncode == 1
    first, second = stdout.splitlines()
    assert first.startswith("caps seed 0: failed, its process was ended by SIGKILL")
    assert second.startswith("cnn seed 0: finished, ")
    assert stderr.splitlines()[-1].startswith("error: 1 of 2 runs failed")
    assert "Traceback" not in stderr
    check_equals(Path("runs", CNN), whole / CNN)

    monkeypatch.setattr(grid, "run_cell_apart", grid.run_cell)
    seen = torch.load(Path("runs", CAPS, "last.pt"), weights_only=True)["position"]["images_seen"]
    assert 0 < seen < 960
    again = cli(*GRID)
    assert again.exit_code == 0
    assert [line.split(",")[0] for line in again.stdout.splitlines()] == [
        "caps seed 0: finished",
        "cnn seed 0: skipped",
    ]
    assert f"{seen:,} images" not in again.stderr, "it began anew"
    check_equals(Path("runs", CAPS), whole / CAPS)


@needs_proc
@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT-to-all"])
def test_a_stopped_grid_saves_its_present_cell_and_goes_on(
    number: signal.Signals, whole: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(*GRID) as process:
        wait_until(Path("runs", CAPS, "last.pt").exists, process)
        if number == signal.SIGINT:  # a terminal sends it to every process of the group
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    first, second = stdout.splitlines()
    assert first.startswith("caps seed 0: interrupted, stopped after ")
    assert "the state is saved" in first
    assert second == "cnn seed 0: interrupted"
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("error: interrupted with 2 of 2 runs to do; their states are saved.")
    assert [folder.name for folder in Path("runs").iterdir()] == [CAPS]
    names = {"best.pt", "config.json", "last.pt", "metrics.jsonl"}
    assert names <= read_tree(Path("runs", CAPS)).keys() <= {*names, "previous.pt"}

    if number == signal.SIGINT:
        return
    monkeypatch.setattr(grid, "run_cell_apart", grid.run_cell)
    again = cli(*GRID)
    assert again.exit_code == 0
    assert again.stdout.count(": finished, ") == 2
    for folder in (CAPS, CNN):
        check_equals(Path("runs", folder), whole / folder)


@needs_proc
@pytest.mark.usefixtures("desk")
def test_a_grid_is_stopped_while_a_cell_has_hardly_begun() -> None:
    with start(*GRID) as process:
        wait_until(lambda: find_cell(process.pid) is not None, process)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert [line.split(",")[0] for line in stdout.splitlines()] == [
        "caps seed 0: interrupted",
        "cnn seed 0: interrupted",
    ]
    assert "Traceback" not in stderr
    assert stderr.splitlines()[-1].startswith("error: interrupted with 2 of 2 runs to do")


@needs_proc
@pytest.mark.usefixtures("desk")
def test_a_cell_whose_grid_is_killed_stops_with_its_state_saved() -> None:
    last = Path("runs/caps-tiny-9600k-seed0/last.pt")
    with start("train", "--models", "caps,cnn", *FEW[:-1], "9600000") as process:
        wait_until(last.exists, process)
        cell = find_cell(process.pid)
        assert cell is not None
        process.kill()
        process.wait()
        try:
            wait_until(lambda: not is_alive(cell))
        finally:
            if is_alive(cell):
                os.kill(cell, signal.SIGKILL)
    position = load_checkpoint(last)["position"]
    assert position["images_seen"] > 0
    assert not (last.parent / "train.lock").exists()
    assert [folder.name for folder in Path("runs").iterdir()] == [last.parent.name]
    assert not (last.parent / "failure.json").exists()


def read_comparison() -> list[dict[str, object]]:
    """Return the figures of a comparison that do not depend on the machine and the hour."""
    tables = json.loads(Path("report.json").read_text())["tables"]
    timed = ("time", "images_per_s", "memory", "speed")
    return [
        {key: value for key, value in row.items() if not any(word in key for word in timed)}
        for table in tables
        for row in table["rows"]
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM that a process could heed")
@pytest.mark.usefixtures("desk", "in_this_process")
def test_reproduce_goes_on_where_it_was_stopped(cli: Cli) -> None:
    words = ("reproduce", "--images", "256", "--size", "tiny", "--cpu", "--threads", "1")
    folders = [f"{model}-tiny-256-seed0" for model in MATCHED_MODELS]
    with start(*words) as process:
        wait_until(Path("runs", folders[0], "last.pt").exists, process)
        process.terminate()
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert "Give the same command again to go on." in stderr.splitlines()[-1]
    assert stdout.splitlines()[-1] == f"{MATCHED_MODELS[-1]} seed 0: interrupted"
    assert not Path("report.json").exists()

    assert cli(*words).exit_code == 0
    ours = read_comparison()
    Path("runs").rename("stopped")
    assert cli(*words).exit_code == 0
    assert ours == read_comparison()
    assert {row["run"] for row in ours if "run" in row} >= set(folders)
    for folder in folders:
        check_equals(Path("stopped", folder), Path("runs", folder))
