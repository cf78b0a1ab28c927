"""What only a real process shows: encodings, pipes, terminals, signals from outside, ``python -m``."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, read_tree
from tests.cli.test_interrupts import read_outcome

COMMAND = (sys.executable, "-m", "overlaycaps")
ROOT = Path(__file__).parents[2]
FORCING = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "COLUMNS", "PYTHONIOENCODING"}


def make_environment(**more: str) -> dict[str, str]:
    """Return the environment of a plain shell, where the package is found and one thread is enough."""
    found = {name: value for name, value in os.environ.items() if name not in FORCING}
    path = os.pathsep.join([str(ROOT), *filter(None, [found.get("PYTHONPATH")])])
    return {**found, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def shelf(trained_runs: Path, tmp_path: Path) -> Path:
    """A folder whose runs have names that encodings and markup stumble over."""
    shutil.copytree(trained_runs / "capsules", tmp_path / "runs/Kapseln λ[red]")
    shutil.copytree(trained_runs / "baseline", tmp_path / "runs/baseline")
    return tmp_path


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_encoding_will_do(encoding: str, shelf: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "compare"],
        cwd=shelf,
        env=make_environment(PYTHONIOENCODING=encoding),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    assert ("Kapseln λ[red]" if encoding == "utf-8" else "Kapseln ?[red]") in shown
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr
    assert done.stderr == b"written: report.md, report.json\n"
    assert "Kapseln λ" in (shelf / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("words", [["compare"], ["compare", "--json"]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_fault(words: list[str], shelf: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *words], cwd=shelf, env=make_environment(), stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert b"error:" not in done.stderr
    assert (shelf / "report.md").exists() == (words == ["compare"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_to_a_full_disk_is_a_failure(shelf: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "compare", "--json"],
            cwd=shelf,
            env=make_environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert b"the disk is full" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("colours", [True, False], ids=["colours", "NO_COLOR"])
def test_an_error_is_red_on_a_terminal_unless_colours_are_unwanted(colours: bool, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    terminal, end = pty.openpty()
    more = {} if colours else {"NO_COLOR": "1"}
    done = subprocess.run(
        [*COMMAND, "compare"], cwd=tmp_path, env=make_environment(TERM="xterm", **more), stderr=end, check=False
    )
    os.close(end)
    shown = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert done.returncode == 1
    assert bool(re.search(r"\x1b\[[\d;]*3\dm", shown)) == colours
    assert "runs is not a folder with runs" in shown


@pytest.fixture
def training(desk: Path) -> Iterator[subprocess.Popen[str]]:
    """A real process in the middle of a run that nobody would wait for."""
    words = ["train", "--size", "tiny", "--images", "9600000", "--batch-size", "32", "--cpu", "--name", "run"]
    with subprocess.Popen(
        [*COMMAND, *words], cwd=desk, env=make_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not (desk / "runs/run/last.pt").exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_ends_a_run_with_its_state_saved(
    number: signal.Signals, training: subprocess.Popen[str], desk: Path
) -> None:
    training.send_signal(number)
    stdout, stderr = training.communicate(timeout=30)
    assert training.returncode == 130
    assert stdout == ""
    assert re.fullmatch(
        r"error: stopped after [\d,]+ of 9,600,000 images; the state is saved. Continue with "
        r"`overlaycaps train --resume runs/run`\.",
        stderr.splitlines()[-1],
    )
    names = set(read_tree(desk / "runs/run")) - {"previous.pt"}  # the first state has none before it
    assert names == {"best.pt", "config.json", "last.pt", "metrics.jsonl"}


def test_a_killed_run_goes_on_from_its_last_evaluation(desk: Path, cli: Cli) -> None:
    words = ["train", "--size", "tiny", "--images", "500", "--batch-size", "32", "--cpu"]
    assert cli(*words, "--name", "whole").exit_code == 0
    # A process that is killed at the end of its third epoch, without a word.
    script = (
        "import os, signal, sys, torch; torch.set_num_threads(1)\n"
        "import overlaycaps.train.loop as loop\n"
        "from overlaycaps.cli import main\n"
        "evaluate, calls = loop.evaluate, []\n"
        "def count(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return evaluate(*arguments)\n"
        "loop.evaluate = count\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words, "--name", "run"],
        cwd=desk,
        env=make_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert cli("train", "--resume", "runs/run", "--cpu").exit_code == 0
    assert read_outcome(desk / "runs/run") == read_outcome(desk / "runs/whole")
    assert json.loads((desk / "runs/run/result.json").read_text())["training"]["images_seen"] == 500
