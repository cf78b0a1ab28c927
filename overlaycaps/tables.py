"""The tables of named things: a name on the command line, where it is built, one line of help.

A row holds its target as text (``package.module:attribute``), so that listing names, printing help and completing
words never import torch.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from overlaycaps.errors import UsageError

_T = TypeVar("_T")


@dataclass(frozen=True)
class Row:
    """One named thing: its name, its one-line summary, its source, and where it is defined."""

    name: str
    summary: str
    reference: str
    target: str

    def load(self) -> Any:
        """Import and return the target."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


def make_table(*rows: Row) -> dict[str, Row]:
    """Return name -> row.

    Raises:
        ValueError: if two rows have one name.
    """
    table = {row.name: row for row in rows}
    if len(table) != len(rows):
        names = [row.name for row in rows]
        raise ValueError(f"duplicate names: {sorted({name for name in names if names.count(name) > 1})}")
    return table


def look_up(table: Mapping[str, _T], name: str, option: str) -> _T:
    """Return the row called ``name``.

    Raises:
        UsageError: if there is none; it names the option, the choices and the nearest name.
    """
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UsageError(f"{option} {name}: no such name; choose one of {', '.join(table)}.{hint}")
