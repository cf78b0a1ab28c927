"""The neutral report: what is said, without how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Column:
    """One figure of every row: a stable key for programs, a header for people; prose ``wraps``, figures never do."""

    key: str
    header: str
    align: Literal["left", "right"] = "left"
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """One figure: how people read it, and its value for programs."""

    text: str
    value: Any


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells under {len(self.columns)} columns")


@dataclass(frozen=True)
class Report:
    """Tables, what is to be said of them in words, and what they were made of."""

    title: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    sources: tuple[dict[str, Any], ...] = ()
