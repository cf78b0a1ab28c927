"""A report on a terminal, or in a file that a terminal's output goes to."""

from __future__ import annotations

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from overlaycaps.report.format import escape_controls
from overlaycaps.report.table import Report, Table

_UNBOUNDED = 10_000
_MIN_PROSE_WIDTH = 24


def print_report(report: Report, console: Console) -> None:
    """Print every table and note.

    On a terminal a table that is too wide gets its headers wrapped, and if that does not do, it is turned: figures in
    rows, as many table rows beside each other as fit. In a file a table is as wide as it needs to be. No figure is ever
    cut, and every text is shown as it is, never read as markup.
    """
    for table in report.tables:
        print_table(table, console)
    for note in report.notes:
        # In a file a note is one line, for people who search it; on a terminal it is wrapped between words.
        console.print(_show(note), soft_wrap=not console.is_terminal)


def print_table(table: Table, console: Console) -> None:
    """Print one table, narrowed or turned where it would not fit."""
    console.print(_show(table.title, "bold"))
    whole = _draw(table, console, [None] * len(table.columns))
    if not console.is_terminal:
        # A pipe has no width: the 80 columns that Rich assumes must not cut figures.
        console.width = max(console.width, _measure(whole, console))
    narrow = _draw(table, console, _narrow(table, console))
    for drawn in (whole, narrow):
        if _measure(drawn, console) <= console.width:
            console.print(drawn)
            break
    else:
        for part in _turn(table, console):
            console.print(part)
    console.print()


def _draw(table: Table, console: Console, widths: list[int | None]) -> RichTable:
    drawn = _make_frame(console)
    for column, width in zip(table.columns, widths, strict=True):
        drawn.add_column(_show(column.header), justify=column.align, width=width)
    for row in table.rows:
        drawn.add_row(*(_show(cell.text) for cell in row))
    return drawn


def _narrow(table: Table, console: Console) -> list[int | None]:
    """Return the least widths at which only headers and prose are wrapped; prose shares what the console has left."""
    widths: list[int | None] = []
    for index, column in enumerate(table.columns):
        figures = [] if column.wraps else [cell_len(_show(row[index].text).plain) for row in table.rows]
        words = [cell_len(word) for word in column.header.split()]
        widths.append(max([*figures, *words, _MIN_PROSE_WIDTH if column.wraps else 1]))
    spare = console.width - _measure(_draw(table, console, widths), console)
    prose = [index for index, column in enumerate(table.columns) if column.wraps]
    for index in prose:
        widths[index] = (widths[index] or 0) + max(0, spare) // len(prose)
    return widths


def _turn(table: Table, console: Console) -> list[RichTable]:
    """Return the table with its columns as rows, cut into parts that each fit the console's width."""
    parts = []
    start = 0
    while start < len(table.rows):
        stop = len(table.rows)
        while stop > start + 1 and _measure(_turn_rows(table, start, stop, console), console) > console.width:
            stop -= 1
        parts.append(_turn_rows(table, start, stop, console))
        start = stop
    return parts


def _turn_rows(table: Table, start: int, stop: int, console: Console) -> RichTable:
    drawn = _make_frame(console)
    first, *others = table.columns
    drawn.add_column(_show(first.header), overflow="fold")
    for row in table.rows[start:stop]:
        # Only a text longer than the terminal is ever folded, and then whole.
        drawn.add_column(_show(row[0].text), justify="right", overflow="fold")
    for index, column in enumerate(others, start=1):
        drawn.add_row(_show(column.header), *(_show(row[index].text) for row in table.rows[start:stop]))
    return drawn


def _measure(drawn: RichTable, console: Console) -> int:
    """Return the natural width of a table, whatever the console's."""
    return Measurement.get(console, console.options.update(width=_UNBOUNDED), drawn).maximum


def _make_frame(console: Console) -> RichTable:
    lines = box.SIMPLE_HEAD
    try:
        str(lines).encode(console.encoding)
    except UnicodeEncodeError:
        lines = box.ASCII
    return RichTable(box=lines, header_style="bold")


def _show(text: str, style: str = "") -> Text:
    """Return a text as it is: no markup, and no character that moves the cursor."""
    return Text(escape_controls(text), style=style)
