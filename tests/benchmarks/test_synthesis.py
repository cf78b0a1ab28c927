"""The speeds that are printed for data are those of the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import synthesis
from benchmarks.measure import Timing
from data_gen.protocols import PROTOCOLS
from data_gen.sources import load_bundled

TINY = ("--train", "8", "--valid", "8", "--test", "8")


def test_speeds_are_samples_over_seconds() -> None:
    table = synthesis.format_synthesis({"diverse": Timing((0.5, 0.1, 0.25))}, num_samples=10_000)
    assert table.splitlines()[-1] == "| diverse | 40,000 | 20,000 | 100,000 | 3 | 40,000 |"


def test_all_protocols_are_timed() -> None:
    timings = synthesis.time_synthesis(load_bundled(), rounds=2, num_samples=4)
    assert list(timings) == list(PROTOCOLS)
    assert [timing.n for timing in timings.values()] == [2] * len(PROTOCOLS)


def test_the_whole_command_is_timed_and_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    def generate(command: Sequence[str]) -> None:
        assert command[1:3] == ["generate", "--out"]
        assert command[4:] == list(TINY)
        written.append(Path(command[3]))
        written[-1].touch(exist_ok=False)

    monkeypatch.setattr(synthesis, "run_command", generate)
    assert synthesis.time_generate(2, TINY).n == 2
    assert len(written) == 3  # one to warm up
    assert not written[-1].parent.exists()


def test_the_whole_command_is_weighed() -> None:
    # The bundled digits alone are 70,000 bytes times 28 x 28.
    assert 52 < synthesis.weigh_generate(TINY) < 1000


def test_seconds_and_memory_are_in_one_table() -> None:
    table = synthesis.format_generate(Timing((2.0, 3.0, 2.5)), 123.4)
    assert table.splitlines()[-1] == "| `overlaycaps generate` | 2.50 | 2.00 | 3.00 | 3 | 5 | 123 |"
