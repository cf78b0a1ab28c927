"""What a long command shows on stderr: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from overlaycaps.cli.console import escape_controls, format_warning, make_stderr
from overlaycaps.report.format import format_duration, format_percent
from overlaycaps.train.observer import Evaluation
from overlaycaps.train.observer import Progress as RunProgress

# A log file should show that the work goes on; more often than this it is only noise.
_PLAIN_INTERVAL_S = 15.0


class _Line:
    """One line of progress: a bar that moves on a terminal, plain text at intervals elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last_plain_s = time.monotonic()
        self.bar: Progress | None = None
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
        if self.bar is not None:
            self.bar.update(self.task, label=escape_controls(label), state=state, completed=done)
        elif time.monotonic() - self.last_plain_s >= _PLAIN_INTERVAL_S:
            self.last_plain_s = time.monotonic()
            self.say(f"{label}: {state}")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(Text(escape_controls(text)), soft_wrap=True)


@contextmanager
def _open_line() -> Iterator[_Line]:
    line = _Line(make_stderr())
    if line.bar is None:
        yield line
    else:
        with line.bar:
            yield line


class TrainingView:
    """Shows a training run: epoch, loss, validation exact match, images/s, time left."""

    def __init__(self, line: _Line, name: str) -> None:
        self.line, self.name = line, name
        self.latest = "-"

    def on_progress(self, progress: RunProgress) -> None:
        """Show where the run stands."""
        p = progress
        state = (
            f"epoch {p.epoch}/{p.num_epochs}  {p.images_seen:,}/{p.num_images:,} images  loss {p.loss:.3f}  "
            f"validation {self.latest}  {p.images_per_s:.0f} images/s  {format_duration(p.remaining_s)} left"
        )
        self.line.show(self.name, state, p.images_seen / p.num_images)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Print a line that stays for every evaluation."""
        e = evaluation
        self.latest = format_percent(e.exact_match)
        self.line.say(
            f"{self.name}: epoch {e.epoch}/{e.num_epochs}  {e.images_seen:,} images  training loss {e.train_loss:.4f}  "
            f"validation exact match {self.latest}{' (best so far)' if e.is_best else ''}"
        )

    def on_warning(self, message: str) -> None:
        """Print a line that stays."""
        self.line.console.print(format_warning(message), soft_wrap=True)


class GenerationView:
    """Shows the making of a data file."""

    def __init__(self, line: _Line, label: str) -> None:
        self.line, self.label = line, label

    def __call__(self, split: str, done: int, total: int) -> None:
        """Show how far a split is."""
        self.line.show(self.label, f"{split}: {done:,} of {total:,} images", done / max(total, 1))


@contextmanager
def show_training(name: str) -> Iterator[TrainingView]:
    """Show a training run while the block runs."""
    with _open_line() as line:
        yield TrainingView(line, name)


@contextmanager
def show_generation(label: str) -> Iterator[GenerationView]:
    """Show the making of a data file while the block runs."""
    with _open_line() as line:
        yield GenerationView(line, label)
