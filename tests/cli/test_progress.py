"""What a long command shows: a sign of life in a log, one moving line on a terminal, names as they are."""

from __future__ import annotations

import io
import itertools
import time

import pytest
from rich.console import Console

from overlaycaps.cli import progress
from overlaycaps.report.format import escape_controls
from overlaycaps.train.observer import Evaluation, Progress


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
