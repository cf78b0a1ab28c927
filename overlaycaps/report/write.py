"""Writing a report's files, without ever replacing a file that is not one."""

from __future__ import annotations

import json
from pathlib import Path

from overlaycaps.errors import UserError
from overlaycaps.files import write_text_atomically
from overlaycaps.report.renderers import RENDERERS
from overlaycaps.report.renderers.markdown import MARKER
from overlaycaps.report.table import Report
from overlaycaps.schemas import REPORT_SCHEMA


def write_report(report: Report, folder: Path, *, force: bool = False) -> list[Path]:
    """Write ``report.md`` and ``report.json``, and whatever else the table of renderers has, into a folder.

    A report that the program wrote before is refreshed.

    Raises:
        UserError: as :func:`check_report_files`, with nothing written at all; or if a file cannot be written.
    """
    if not force:
        check_report_files(folder)
    paths = {name: folder / f"report.{name}" for name in RENDERERS}
    for name, path in paths.items():
        write_text_atomically(path, RENDERERS[name].load()(report))
    return list(paths.values())


def check_report_files(folder: Path) -> None:
    """Check, perhaps long before there is a report, that it will replace no file of the user's.

    Raises:
        UserError: if a file in the folder has the name of a report and is not one of ours.
    """
    for path in (folder / f"report.{name}" for name in RENDERERS):
        if path.exists() and not _is_report(path):
            raise UserError(
                f"{path} is not a report of overlaycaps; move it away, or replace it by `overlaycaps compare --force`."
            )


def _is_report(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        return text.startswith(MARKER) or json.loads(text).get("schema") == REPORT_SCHEMA
    except (OSError, ValueError, AttributeError):
        return False
