"""The runs in a folder and how far each is, as one neutral report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from overlaycaps.errors import UserError
from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.report.format import format_count, format_duration, format_percent
from overlaycaps.report.run_status import Plan, Progress, RunStatus, read_status
from overlaycaps.report.table import Cell, Column, Report, Table
from overlaycaps.train.run_folder import RunFolder

_T = TypeVar("_T")

_COLUMNS = (
    Column("run", "run"),
    Column("state", "state"),
    Column("model", "model"),
    Column("routing", "routing x iterations"),
    Column("size", "size"),
    Column("seed", "seed", "right"),
    Column("images", "images seen / planned", "right"),
    Column("validation_exact_match", "best validation exact match", "right"),
    Column("best_epoch", "best epoch", "right"),
    Column("last_sign_s", "last sign of life", "right"),
    Column("begun", "begun"),
)


def list_runs(runs_dir: Path, now_s: float) -> Report:
    """List the runs in a folder; a damaged one is shown as far as it can be read, and said to be damaged.

    Args:
        runs_dir: the folder of runs.
        now_s: the present, in seconds since the epoch.

    Raises:
        UserError: if there is no such folder.
    """
    first_step = "`overlaycaps train --model caps`"
    if not runs_dir.is_dir():
        raise UserError(f"{runs_dir} is not a folder with runs; train one first: {first_step}.")
    rows, notes, skipped = [], [], []
    for path in sorted(runs_dir.iterdir()):
        try:
            if not path.is_dir():
                continue
            status = read_status(RunFolder(path))
            if status is None:
                skipped.append(path.name)
                continue
            rows.append(_make_row(status, now_s))
            notes += _describe(status)
        except OSError as error:  # someone else's folder, or a disk that fails: the others can still be listed
            rows.append((_make_cell(path.name), *(_make_cell(None) for _ in _COLUMNS[1:])))
            notes.append(f"{error.filename or path} could not be read: {error.strerror or error}.")
    if not rows:
        notes.append(f"There is no run in {runs_dir} yet; {first_step} starts one.")
    if skipped:
        notes.append(f"Not runs, skipped: {', '.join(skipped)}.")
    title = f"Runs in {runs_dir}"
    return Report(title, (Table(title, _COLUMNS, tuple(rows)),), tuple(notes))


def _describe(status: RunStatus) -> list[str]:
    """Say what is damaged, why the run failed, or how it goes on, which it cannot without its configuration."""
    notes = list(status.faults)
    name = status.folder.path.name
    if status.reason is not None:
        notes.append(f"{name} failed: {status.reason}")
    if status.state == "interrupted" and status.plan != Plan():
        notes.append(f"{name} was interrupted; continue it with `{status.folder.describe_resume()}`.")
    return notes


def _make_row(status: RunStatus, now_s: float) -> tuple[Cell, ...]:
    plan, progress = status.plan, status.progress
    return (
        _make_cell(status.folder.path.name),
        _make_cell(status.state),
        _make_cell(plan.model),
        _make_routing_cell(progress.routing or plan.routing),
        _make_cell(plan.size),
        _make_cell(plan.seed),
        _make_images_cell(plan, progress),
        _make_exact_cell(progress.exact),
        _make_cell(progress.best_epoch),
        _make_cell(_find_age_s(status.folder, now_s), lambda age_s: f"{format_duration(age_s)} ago"),
        _make_begun_cell(status.folder.config_file),
    )


def _make_cell(value: _T | None, show: Callable[[_T], str] = str) -> Cell:
    return Cell("-" if value is None else show(value), value)


def _make_routing_cell(routing: tuple[str, int] | None) -> Cell:
    name, passes = routing or (None, None)
    return Cell(f"{name} x {passes}" if routing else "-", [name, passes])


def _make_images_cell(plan: Plan, progress: Progress) -> Cell:
    seen, planned = progress.images_seen, plan.num_images
    texts = ["-" if number is None else format_count(number) for number in (seen, planned)]
    return Cell(" / ".join(texts), {"seen": seen, "planned": planned})


def _make_exact_cell(exact: Proportion | None) -> Cell:
    return Cell("-", None) if exact is None else Cell(format_percent(exact.ratio), exact.to_dict())


def _find_age_s(folder: RunFolder, now_s: float) -> int | None:
    """Return how long ago the run last wrote something; a clock that is ahead of ours counts as now."""
    files = (folder.metrics_file, folder.last_file, folder.config_file, folder.result_file, folder.failure_file)
    times_s = [time_s for file in files if (time_s := _read_mtime_s(file)) is not None]
    return max(0, round(now_s - max(times_s))) if times_s else None


def _make_begun_cell(config_file: Path) -> Cell:
    """Return when the configuration was written, once and for all: in local time, with its zone for programs."""
    written_s = _read_mtime_s(config_file)
    try:
        begun = None if written_s is None else datetime.fromtimestamp(written_s).astimezone()
    except (OSError, OverflowError, ValueError):  # a file may bear any date, even one beyond the calendar
        begun = None
    if begun is None:
        return Cell("-", None)
    return Cell(begun.replace(tzinfo=None).isoformat(timespec="minutes"), begun.isoformat(timespec="seconds"))


def _read_mtime_s(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return None
