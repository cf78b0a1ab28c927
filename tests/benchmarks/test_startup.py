"""What is timed is what users type, and torch is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.measure import Timing


def test_every_command_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(startup, "run_command", lambda command: run.append(list(command[1:])))
    commands = startup.list_commands()
    timings = startup.time_commands(commands, rounds=1)
    assert list(timings) == [startup.BASELINE, *commands]
    assert {"overlaycaps --help", "overlaycaps --version", "overlaycaps train --help"} <= set(commands)
    assert set(startup.AIMS_S) <= set(commands)
    assert run[len(timings) :] == [["-c", "pass"], *map(list, commands.values())]  # after the warm-up


def test_torch_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not startup.imports_torch(["--help"])
    # An empty torch, imported as Python starts: the real one takes seconds.
    (tmp_path / "torch.py").touch()
    (tmp_path / "sitecustomize.py").write_text("import torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert startup.imports_torch(["--help"])


def test_the_table_is_in_milliseconds() -> None:
    timings = {startup.BASELINE: Timing((0.01,)), "overlaycaps --help": Timing((0.2, 0.3, 0.1))}
    assert startup.format_startup(timings, {"overlaycaps --help": False}).splitlines()[2:] == [
        "| `python -c pass` | 10 | 10 | 10 | 1 |  |  |",
        "| `overlaycaps --help` | 200 | 100 | 300 | 3 | 400 | no |",
    ]
