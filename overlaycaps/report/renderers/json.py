"""A report as JSON."""

from __future__ import annotations

import json

from overlaycaps.report.table import Report
from overlaycaps.schemas import REPORT_SCHEMA, REPORT_VERSION


def render(report: Report) -> str:
    """Return the report as JSON: values instead of texts, and the results that it was made of, whole."""
    content = {
        "schema": REPORT_SCHEMA,
        "schema_version": REPORT_VERSION,
        "title": report.title,
        "tables": [
            {
                "title": table.title,
                "rows": [
                    {column.key: cell.value for column, cell in zip(table.columns, row, strict=True)}
                    for row in table.rows
                ],
            }
            for table in report.tables
        ],
        "notes": list(report.notes),
        "sources": list(report.sources),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
