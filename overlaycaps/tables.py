"""The tables of named things: a name on the command line, where it is built, one line of help.

A row holds its target as text (``package.module:attribute``), so that listing names, printing help and completing
words never import torch. Other packages add rows by an entry point, and a target may stand in place of a name.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from overlaycaps.errors import UsageError

_T = TypeVar("_T")
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Row:
    """One named thing: its name, its one-line summary, its source, and where it is defined."""

    name: str
    summary: str
    reference: str
    target: str

    def load(self) -> Any:
        """Import and return the target.

        Raises:
            UsageError: if it cannot be imported.
        """
        module, _, path = self.target.partition(":")
        if self.name == self.target:
            # The user names a module, perhaps one in the folder where they stand.
            here = str(Path.cwd())
            if here not in sys.path:
                sys.path.insert(0, here)
        try:
            found: Any = importlib.import_module(module)
            for attribute in path.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"{self.target} could not be loaded: {error}.") from error
        return found


class Table(Mapping[str, Row]):
    """Name -> row: the rows given here, then those of entry points; ``package.module:attribute`` is its own row.

    Args:
        rows: the table's own rows.
        group: the entry-point group by which other packages add rows.

    Raises:
        ValueError: if two of the rows have one name.
    """

    def __init__(self, *rows: Row, group: str | None = None) -> None:
        names = [row.name for row in rows]
        if len(set(names)) != len(names):
            raise ValueError(f"duplicate names: {sorted({name for name in names if names.count(name) > 1})}")
        self._own = {row.name: row for row in rows}
        self._group = group

    @cached_property
    def _rows(self) -> dict[str, Row]:
        # A name of ours cannot be taken over by whatever happens to be installed.
        return {**self._find_entry_points(), **self._own} if self._group else self._own

    def _find_entry_points(self) -> dict[str, Row]:
        found = {}
        for point in importlib.metadata.entry_points(group=self._group or ""):
            package = point.dist.name if point.dist is not None else "another package"
            found[point.name] = Row(point.name, f"from {package}", point.value, point.value)
        return found

    def __getitem__(self, name: str) -> Row:
        if name in self._rows:
            return self._rows[name]
        if self._group and is_target(name):
            return Row(name, "given by its place", name, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *(name for name in self._rows if name not in self._own)])

    def __len__(self) -> int:
        return len(self._rows)


def is_target(name: str) -> bool:
    """Whether a name is the place of something (``package.module:attribute``) and not a row's name."""
    return _TARGET.fullmatch(name) is not None


def look_up(table: Mapping[str, _T], name: str, option: str) -> _T:
    """Return the row called ``name``.

    Raises:
        UsageError: if there is none; it names the option, the choices and the nearest name.
    """
    if name in table:
        return table[name]
    raise refuse_name(name, table, option)


def refuse_name(name: str, known: Iterable[str], option: str) -> UsageError:
    """Return the error for a name that is none of ``known``; it names the option, the choices and the nearest name."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return UsageError(f"{option} {shlex.quote(name)}: no such name; choose one of {', '.join(names)}.{hint}")
