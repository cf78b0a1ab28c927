"""What a long command shows on stderr: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from overlaycaps.cli.console import format_warning, make_stderr
from overlaycaps.report.format import escape_controls, format_duration, format_percent
from overlaycaps.train.observer import Evaluation, Scoring
from overlaycaps.train.observer import Progress as RunProgress

if TYPE_CHECKING:
    from overlaycaps.train.grid import CellOutcome

# A log file should show that the work goes on; more often than this it is only noise.
_PLAIN_INTERVAL_S = 15.0
# Where nothing happens that could be told (compiling, reading, one long step), the last line is told again.
_SILENCE_S = 25.0
_WATCH_S = 1.0


class _Line:
    """One line of progress: a bar that moves on a terminal, plain text at intervals elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last_plain_s = self.started_s = time.monotonic()
        self.latest = ""
        self.bar: Progress | None = None
        self.overall: TaskID | None = None
        if console.is_interactive:  # a dumb terminal cannot move its cursor
            # Text columns without markup: names of files and runs are shown as they are.
            self.bar = Progress(
                TextColumn("{task.fields[label]}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[state]}", markup=False),
                console=console,
                transient=True,
            )
            self.task = self.bar.add_task("", label="", state="", total=1.0)

    def show(self, label: str, state: str, done: float) -> None:
        """Show how far the work is, ``done`` of 1."""
        self.latest = f"{label}: {state}"
        if self.bar is not None:
            self.bar.update(self.task, label=escape_controls(label), state=state, completed=done)
        elif time.monotonic() - self.last_plain_s >= _PLAIN_INTERVAL_S:
            self._say_plainly(self.latest)

    def show_overall(self, state: str, done: float) -> None:
        """Show how far all of the work is, of which this is a part, ``done`` of 1; on a terminal only."""
        if self.bar is None:
            return
        if self.overall is None:
            self.overall = self.bar.add_task("", label="", state="", total=1.0)
        self.bar.update(self.overall, label="all runs", state=state, completed=done)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.last_plain_s = time.monotonic()
        self.console.print(Text(escape_controls(text)), soft_wrap=True)

    def break_silence(self) -> None:
        """Say in a log that the work goes on, if nothing was said for long."""
        if self.bar is None and time.monotonic() - self.last_plain_s >= _SILENCE_S:
            self._say_plainly(
                f"{self.latest or 'working'}  ({format_duration(time.monotonic() - self.started_s)} so far)"
            )

    def _say_plainly(self, text: str) -> None:
        self.last_plain_s = time.monotonic()
        self.console.print(Text(escape_controls(text)), soft_wrap=True)


@contextmanager
def _open_line(is_shown: bool = True) -> Iterator[_Line]:
    line = _Line(make_stderr() if is_shown else Console(quiet=True, force_interactive=False))
    if line.bar is not None:
        with line.bar:
            yield line
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_WATCH_S):
            line.break_silence()

    watcher = threading.Thread(target=watch, name="sign-of-life", daemon=True)
    watcher.start()
    try:
        yield line
    finally:
        ended.set()
        watcher.join()


class TrainingView:
    """Shows a training run: epoch, loss, validation exact match, images/s, time left."""

    def __init__(self, line: _Line, name: str) -> None:
        self.line, self.name = line, name
        self.latest = "-"
        self.share = 0.0
        self.told: set[str] = set()

    def on_progress(self, progress: RunProgress) -> None:
        """Show where the run stands."""
        p = progress
        self.share = p.images_seen / p.num_images
        state = (
            f"epoch {p.epoch}/{p.num_epochs}  {p.images_seen:,}/{p.num_images:,} images  loss {p.loss:.3f}  "
            f"validation {self.latest}  {p.images_per_s:.0f} images/s  {format_duration(p.remaining_s)} left"
        )
        self.line.show(self.name, state, self.share)

    def on_scoring(self, scoring: Scoring) -> None:
        """Show how far a split is scored."""
        s = scoring
        self.line.show(self.name, f"{s.split}: {s.images_done:,} of {s.num_images:,} images scored", self.share)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Print a line that stays for every evaluation."""
        e = evaluation
        self.latest = format_percent(e.exact_match)
        self.line.say(
            f"{self.name}: epoch {e.epoch}/{e.num_epochs}  {e.images_seen:,} images  training loss {e.train_loss:.4f}  "
            f"validation exact match {self.latest}{' (best so far)' if e.is_best else ''}"
        )
        if e.num_left is not None and e.num_left <= 0 and e.epoch < e.num_epochs:
            self.line.say(f"{self.name}: no better validation for long enough (--patience); this is the end")

    def on_warning(self, message: str) -> None:
        """Print a line that stays, once."""
        if message not in self.told:
            self.told.add(message)
            self.line.console.print(format_warning(message), soft_wrap=True)


class GridView(TrainingView):
    """Shows a grid of runs: the present one as by itself, and how far all are."""

    def __init__(self, line: _Line) -> None:
        super().__init__(line, "")
        self.number, self.total = 0, 1

    def on_cell(self, number: int, total: int, label: str) -> None:
        """Say which run begins."""
        self.number, self.total, self.latest, self.share = number, total, "-", 0.0
        self.name = f"[{number}/{total}] {label}"
        self.line.show(self.name, "starting", 0.0)
        self._show_overall()

    def on_progress(self, progress: RunProgress) -> None:
        """Show where the run, and with it the grid, stands."""
        super().on_progress(progress)
        self._show_overall()

    def on_outcome(self, outcome: CellOutcome) -> None:
        """Print a line that stays."""
        self.line.say(f"{self.name}: {outcome.state}{': ' if outcome.message else ''}{outcome.message}")

    def _show_overall(self) -> None:
        self.line.show_overall(f"{self.number - 1} of {self.total} done", (self.number - 1 + self.share) / self.total)


class GenerationView:
    """Shows the making of a data file."""

    def __init__(self, line: _Line, label: str) -> None:
        self.line, self.label = line, label

    def __call__(self, split: str, done: int, total: int) -> None:
        """Show how far a split is."""
        self.line.show(self.label, f"{split}: {done:,} of {total:,} images", done / max(total, 1))


@contextmanager
def show_training(name: str, *, is_shown: bool = True) -> Iterator[TrainingView]:
    """Show a training run while the block runs, if it is to be shown."""
    with _open_line(is_shown) as line:
        yield TrainingView(line, name)


@contextmanager
def show_grid(*, is_shown: bool = True) -> Iterator[GridView]:
    """Show a grid of runs while the block runs, if it is to be shown."""
    with _open_line(is_shown) as line:
        yield GridView(line)


@contextmanager
def show_generation(label: str) -> Iterator[GenerationView]:
    """Show the making of a data file while the block runs."""
    with _open_line() as line:
        yield GenerationView(line, label)
