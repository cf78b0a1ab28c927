"""What a long command shows: a sign of life in a log, one moving line on a terminal, names as they are."""

from __future__ import annotations

import io
import itertools
import re
import threading
import time

import pytest
from rich.console import Console

from overlaycaps.cli import progress
from overlaycaps.report.format import escape_controls
from overlaycaps.train.grid import CellOutcome
from overlaycaps.train.observer import Evaluation, Progress, Scoring


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in seconds, which goes on as a test says."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def show_steps(console: Console, monkeypatch: pytest.MonkeyPatch, clock: list[float], step_s: float, name: str) -> None:
    """Show a run of twelve steps and an evaluation."""
    monkeypatch.setattr(progress, "make_stderr", lambda: console)
    with progress.show_training(name) as view:
        for step in range(1, 13):
            clock[0] = step * step_s
            view.on_progress(Progress(1, 2, 100 * step, 2400, step, 0.5, 0.01, 123.4, 77.0))
        view.on_evaluation(Evaluation(1, 2, 1200, 0.25, 0.4286, is_best=True, step=12, images_per_s=123.4))


def test_a_log_gets_a_line_at_least_every_30_seconds(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    show_steps(Console(file=stream), monkeypatch, clock, 10.0, "run")
    *lines, evaluation = stream.getvalue().splitlines()
    steps = [int(line.split("  ")[1].split("/")[0].replace(",", "")) // 100 for line in lines]
    assert all(later - earlier <= 3 for earlier, later in itertools.pairwise([0, *steps, 13]))
    for step, line in zip(steps, lines, strict=True):
        images = f"{100 * step:,}/2,400 images"
        assert line == f"run: epoch 1/2  {images}  loss 0.500  validation -  123 images/s  1 min 17 s left"
    assert evaluation.startswith("run: epoch 1/2  1,200 images  training loss 0.2500  validation exact match 42.86 %")
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_quick_run_fills_no_log(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    show_steps(Console(file=stream), monkeypatch, clock, 0.1, "run")
    assert len(stream.getvalue().splitlines()) == 1


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, _environ={"TERM": "dumb"})
    show_steps(console, monkeypatch, clock, 20.0, "run")
    assert len(stream.getvalue().splitlines()) == 13
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_bar_and_lines_that_stay(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    show_steps(console, monkeypatch, clock, 1.0, "a[/x]b[red]")
    assert "\x1b[" in stream.getvalue()
    assert "a[/x]b[red]: epoch 1/2  1,200 images" in stream.getvalue()
    assert stream.getvalue().endswith("\x1b[2K"), "the bar is gone at the end"


def test_generation_is_shown(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "make_stderr", lambda: Console(file=stream))
    with progress.show_generation("a[b].h5") as view:
        clock[0] = 20.0
        view("train", 1024, 60_000)
    assert stream.getvalue() == "a[b].h5: train: 1,024 of 60,000 images\n"


def test_scoring_is_shown(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "make_stderr", lambda: Console(file=stream))
    with progress.show_training("a[b]") as view:
        for number in range(1, 11):
            clock[0] = 10.0 * number
            view.on_scoring(Scoring("validation", 1000 * number, 10_000))
    assert stream.getvalue().splitlines() == [
        f"a[b]: validation: {images:,} of 10,000 images scored" for images in range(2000, 10_001, 2000)
    ]


def show_cells(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show two runs, the first to its half, the second finished before."""
    monkeypatch.setattr(progress, "make_stderr", lambda: console)
    with progress.show_grid() as view:
        view.on_cell(1, 2, "a[/x]b[red] seed 0")
        view.on_progress(Progress(1, 2, 1200, 2400, 12, 0.5, 0.01, 123.4, 77.0))
        if view.line.bar is not None:
            view.line.bar.refresh()
        view.on_outcome(CellOutcome("a[/x]b[red]", 0, "failed", "no [bold]memory"))
        view.on_cell(2, 2, "cnn seed 0")
        view.on_outcome(CellOutcome("cnn", 0, "skipped", "runs/c[b] is finished"))


def test_a_grid_in_a_log_is_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    show_cells(Console(file=stream), monkeypatch)
    assert stream.getvalue().splitlines() == [
        "[1/2] a[/x]b[red] seed 0: failed: no [bold]memory",
        "[2/2] cnn seed 0: skipped: runs/c[b] is finished",
    ]


def test_a_grid_on_a_terminal_shows_how_far_all_of_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    show_cells(Console(file=stream, force_terminal=True, width=160, _environ={"TERM": "xterm"}), monkeypatch)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", stream.getvalue())
    assert "all runs" in shown
    assert "0 of 2 done" in shown
    assert "1 of 2 done" in shown
    assert "[1/2] a[/x]b[red] seed 0 " in shown, "beside the bar"
    assert "1,200/2,400 images" in shown
    assert "[1/2] a[/x]b[red] seed 0: failed: no [bold]memory" in shown
    assert "[2/2] cnn seed 0: skipped: runs/c[b] is finished" in shown


def test_the_bar_of_a_grid_counts_whole_runs_and_the_part_of_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160, _environ={"TERM": "xterm"})
    monkeypatch.setattr(progress, "make_stderr", lambda: console)
    with progress.show_grid() as view:
        view.on_cell(3, 4, "cnn seed 1")
        assert view.line.bar is not None
        one, overall = view.line.bar.tasks
        assert (one.completed, overall.completed) == (0.0, 0.5)
        view.on_progress(Progress(1, 2, 1200, 2400, 12, 0.5, 0.01, 123.4, 77.0))
        assert (one.completed, overall.completed) == (0.5, 0.625)


def test_silence_is_broken_within_30_seconds(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_WATCH_S", 3600.0)  # the test looks by itself
    monkeypatch.setattr(progress, "make_stderr", lambda: Console(file=stream))
    with progress.show_training("a[b]") as view:
        told = []
        for second in range(1, 121):
            clock[0] = float(second)
            if second == 50:
                view.on_scoring(Scoring("test", 100, 1000))
            before = stream.getvalue()
            view.line.break_silence()
            if stream.getvalue() != before or second == 50:
                told.append(second)
        assert all(later - earlier <= 30 - 1 for earlier, later in itertools.pairwise([0, *told]))
        assert len(told) <= 6, "silence is not noise either"
    lines = stream.getvalue().splitlines()
    assert lines[0] == "working  (25 s so far)"
    assert lines[-1].startswith("a[b]: test: 100 of 1,000 images scored  (1 min 4")


def test_a_sign_of_life_comes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress._SILENCE_S + progress._WATCH_S < 30
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_SILENCE_S", 0.02)
    monkeypatch.setattr(progress, "_WATCH_S", 0.005)
    monkeypatch.setattr(progress, "make_stderr", lambda: Console(file=stream))
    with progress.show_grid() as view:
        view.on_cell(1, 2, "caps seed 0")
        deadline = time.monotonic() + 20
        while len(stream.getvalue().splitlines()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    shown = stream.getvalue()
    assert set(shown.splitlines()) == {"[1/2] caps seed 0: starting  (0 s so far)"}
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert not any(thread.name == "sign-of-life" for thread in threading.enumerate()), "it ends with the block"


def test_a_terminal_and_a_process_that_shows_nothing_get_no_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "_SILENCE_S", -1.0)
    console = Console(file=stream, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    monkeypatch.setattr(progress, "make_stderr", lambda: console)
    with progress.show_training("run") as view:
        view.line.break_silence()
    assert "so far" not in stream.getvalue()
    with progress.show_training("run", is_shown=False) as view:
        view.line.break_silence()
        view.on_evaluation(Evaluation(1, 2, 1200, 0.25, 0.4286, is_best=True, step=12, images_per_s=123.4))
        view.on_warning("nobody reads this")
    assert "1,200 images" not in stream.getvalue()
    assert "nobody" not in stream.getvalue()


def test_a_warning_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(progress, "make_stderr", lambda: Console(file=stream))
    with progress.show_grid() as view:
        view.on_cell(1, 2, "caps seed 0")
        for message in ("a[b]", "other", "a[b]"):
            view.on_warning(message)
        view.on_cell(2, 2, "cnn seed 0")
        view.on_warning("a[b]")
    assert stream.getvalue().splitlines() == ["warning: a[b]", "warning: other"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("naïve λ 数字", "naïve λ 数字"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\udcff", r"\udcff"),
    ],
)
def test_controls_are_shown_and_not_obeyed(message: str, shown: str) -> None:
    assert escape_controls(message) == shown
