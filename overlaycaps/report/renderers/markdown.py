"""A report as Markdown."""

from __future__ import annotations

import re

from overlaycaps.report.table import Report, Table

# Tells a report of ours, which may be refreshed, from a file of the user's, which may not.
MARKER = "<!-- made by overlaycaps -->"


def render(report: Report) -> str:
    """Return the report as GitHub Flavored Markdown."""
    parts = [MARKER, f"# {_escape(report.title)}"]
    parts += [f"## {_escape(table.title)}\n\n{_render_table(table)}" for table in report.tables]
    if report.notes:
        parts.append("\n".join(f"- {_escape(note, keep_code=True)}" for note in report.notes))
    return "\n\n".join(parts) + "\n"


def _render_table(table: Table) -> str:
    header = _join([column.header for column in table.columns])
    rule = "|" + "|".join("---:" if column.align == "right" else "---" for column in table.columns) + "|"
    return "\n".join([header, rule, *(_join([cell.text for cell in row]) for row in table.rows)])


def _join(texts: list[str]) -> str:
    return "| " + " | ".join(_escape(text) for text in texts) + " |"


def _escape(text: str, *, keep_code: bool = False) -> str:
    # Names of runs are the user's: a pipe, a star or a tag in one must not become markup.
    special = r"([\\|*_<>\[\]])" if keep_code else r"([\\|*_<>\[\]`])"
    if not keep_code:
        return re.sub(special, r"\\\1", text.replace("\n", " "))
    pieces = text.replace("\n", " ").split("`")
    return "`".join(piece if index % 2 else re.sub(special, r"\\\1", piece) for index, piece in enumerate(pieces))
