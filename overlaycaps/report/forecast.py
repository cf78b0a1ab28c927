"""What ``train --dry-run`` says: what would run, and what it would take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlaycaps.report.format import format_count, format_duration
from overlaycaps.report.table import Cell, Column, Report, Table

if TYPE_CHECKING:
    from overlaycaps.train.forecast import CellForecast

_COLUMNS = (
    Column("run", "run folder"),
    Column("todo", "to do"),
    Column("model", "model"),
    Column("parameters", "parameters", "right"),
    Column("device", "on"),
    Column("images", "images", "right"),
    Column("steps", "steps", "right"),
    Column("epochs", "epochs", "right"),
    Column("images_per_s", "images/s", "right"),
    Column("train_time_s", "training", "right"),
    Column("scoring_time_s", "scoring", "right"),
    Column("memory_mib", "memory", "right"),
    Column("disk_mib", "on disk", "right"),
)
_TODO = {"start": "all", "resume": "the rest", "finished": "nothing"}


def describe_forecasts(cells: Sequence[CellForecast]) -> Report:
    """Return the table of what would run, with how its estimates were made."""
    total_s = sum(cell.forecast.total_time_s for cell in cells if cell.todo != "finished")
    num_left = sum(cell.todo != "finished" for cell in cells)
    measured = ", ".join(
        f"{model} {cell.forecast.steps_measured}"
        for model, cell in {cell.run.config.model: cell for cell in reversed(cells)}.items()
    )
    started = sum(cell.todo == "resume" for cell in cells)
    notes = [
        f"In all about {format_duration(total_s)} for {format_count(num_left)} run{'' if num_left == 1 else 's'}"
        + (", less what is done of those that were begun." if started else "."),
        f"Times are those of a short measurement on this machine (steps measured: {measured}), which other work on it "
        "changes. Memory is the largest seen meanwhile: of the process, or on a GPU of its tensors.",
        "Nothing was written.",
    ]
    return Report(
        "What would run", (Table("What would run", _COLUMNS, tuple(_make_row(cell) for cell in cells)),), tuple(notes)
    )


def _make_row(cell: CellForecast) -> tuple[Cell, ...]:
    run, forecast = cell.run, cell.forecast
    return (
        Cell(str(run.folder.path), str(run.folder.path)),
        Cell(_TODO[cell.todo], cell.todo),
        Cell(run.config.model, run.config.model),
        Cell(format_count(forecast.parameters), forecast.parameters),
        Cell(str(run.runtime), str(run.runtime)),
        Cell(format_count(run.config.num_images), run.config.num_images),
        Cell(format_count(forecast.num_steps), forecast.num_steps),
        Cell(str(forecast.num_epochs), forecast.num_epochs),
        Cell(f"{forecast.images_per_s:.0f}", forecast.images_per_s),
        Cell(format_duration(forecast.train_time_s), forecast.train_time_s),
        Cell(format_duration(forecast.scoring_time_s), forecast.scoring_time_s),
        Cell("-" if forecast.memory_mib is None else f"{forecast.memory_mib:.0f} MiB", forecast.memory_mib),
        Cell(f"{forecast.disk_mib:.1f} MiB", forecast.disk_mib),
    )
