"""What benchmarks print is what was measured."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.measure import Ratio, Timing, format_markdown, ratio, run_child, time_interleaved

ROOT = Path(__file__).parents[2]


def test_a_timing_is_summed_up_by_its_median_and_range() -> None:
    timing = Timing((4.0, 1.0, 3.0, 9.0))
    assert (timing.median_s, timing.min_s, timing.max_s, timing.n) == (3.5, 1.0, 9.0, 4)


def test_ratios_are_taken_round_by_round() -> None:
    # The second round was slow for both: the ratio of the medians, 4, is that of no round.
    assert ratio(Timing((2.0, 90.0, 8.0)), Timing((1.0, 30.0, 2.0))) == Ratio(median=3.0, low=2.0, high=4.0, n=3)


def test_ratios_of_different_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio(Timing((1.0, 2.0)), Timing((1.0,)))


def test_rounds_are_interleaved_and_turn_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    def take(name: str, seconds: float) -> None:
        calls.append(name)
        clock[0] += seconds * len(calls)  # no two runs take the same time

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    timings = time_interleaved({"a": lambda: take("a", 1), "b": lambda: take("b", 100)}, repeats=3, warm_up=1)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]
    # The warm-up is runs 1 and 2 and does not count.
    assert timings == {"a": Timing((3.0, 6.0, 7.0)), "b": Timing((400.0, 500.0, 800.0))}


def test_no_warm_up_is_possible() -> None:
    calls: list[int] = []
    timings = time_interleaved({"a": lambda: calls.append(1)}, repeats=2, warm_up=0)
    assert (len(calls), timings["a"].n) == (2, 2)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a module called ``child`` that processes can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "child.py"


def test_a_child_answers_in_its_last_line(child: Path) -> None:
    child.write_text("import sys; print('on the way'); print('{\"words\": %d}' % len(sys.argv[1:]))")
    assert run_child("child", "one", "two") == {"words": 2}


def test_a_child_that_fails_is_quoted(child: Path) -> None:
    child.write_text("import sys; print('{}'); sys.exit('out of luck')")
    with pytest.raises(RuntimeError, match=r"-m child --fast ended with 1:\nout of luck"):
        run_child("child", "--fast")


@pytest.mark.parametrize("output", ["", "done", "3"])
def test_a_child_without_an_answer_is_told(output: str, child: Path) -> None:
    child.write_text(f"print({output!r}, end='')")
    with pytest.raises(RuntimeError, match=f"without a line of JSON but with '{output}'"):
        run_child("child")


def test_the_memory_of_a_child_is_its_own(child: Path) -> None:
    child.write_text(
        "import json\n"
        "from overlaycaps.memory import current_memory_mib, peak_memory_mib\n"
        "idle = current_memory_mib()\n"
        "bytearray(b'1') * (64 * 2**20)\n"
        "print(json.dumps({'idle_mib': idle, 'peak_mib': peak_memory_mib()}))"
    )
    ballast = bytearray(b"1") * (256 * 2**20)
    memory = run_child("child")
    assert len(ballast) == 256 * 2**20
    assert 0 < memory["idle_mib"] < 64
    assert memory["idle_mib"] + 60 < memory["peak_mib"] < 150


def test_the_machine_is_described_in_one_line() -> None:
    text = measure.describe_machine()
    assert "\n" not in text
    assert f"Python {platform.python_version()}" in text
    for package in ("torch", "numpy"):
        assert f"{package} {version(package)}" in text


def test_outside_of_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    assert measure.describe_machine().endswith("revision unknown")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert measure.describe_machine().endswith("revision unknown")


def test_tables_are_markdown() -> None:
    assert format_markdown(["what", "s", "n"], [["a", "1.5", "3"], ["b", "2", ""]]) == (
        "| what | s | n |\n|---|---:|---:|\n| a | 1.5 | 3 |\n| b | 2 |  |"
    )


def test_benchmarks_that_need_no_torch_import_none() -> None:
    script = "import sys, benchmarks.measure, benchmarks.startup, benchmarks.synthesis; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
