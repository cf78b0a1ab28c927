"""On a terminal of any width and in any encoding, in a pipe: no figure is cut, no name is read as markup."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from overlaycaps.report.comparison import compare_runs
from overlaycaps.report.table import Cell, Column, Report, Table
from overlaycaps.report.terminal import print_report, print_table
from tests.report.samples import collect, collect_four, make_result


def render(report: Report, width: int | None) -> str:
    """Return what a terminal of a width shows, or a pipe."""
    stream = io.StringIO()
    is_terminal = width is not None
    print_report(report, Console(file=stream, force_terminal=is_terminal, width=width, color_system=None))
    return stream.getvalue()


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return compare_runs(collect_four(tmp_path), "overlaycaps compare")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 190, 300, None])
def test_every_figure_is_shown_whole_at_any_width(width: int | None, report: Report) -> None:
    shown = render(report, width)
    assert "…" not in shown
    if width is not None:
        assert max(len(line.rstrip()) for line in shown.splitlines()) <= width
    for table in report.tables:
        for row in table.rows:
            for cell in row:
                assert cell.text in shown, cell.text


def test_a_pipe_gets_one_line_a_run_and_no_control_characters(report: Report) -> None:
    shown = render(report, None)
    lines = [line for line in shown.splitlines() if "caps-small-240k-seed0" in line and "attention x 2" in line]
    assert len(lines) == 1
    assert "72.08 % (71.04 to 73.11)" in lines[0]
    assert "\x1b" not in shown
    assert "\r" not in shown


@pytest.mark.parametrize("width", [80, 300, None])
@pytest.mark.parametrize("name", ["a[red]b", "[bold]", "a|b*c", "[link=x]y", "größe"])
def test_names_are_shown_as_they_are(name: str, width: int | None, tmp_path: Path) -> None:
    report = compare_runs(collect(tmp_path, **{name: make_result()}), "overlaycaps compare")
    assert name in render(report, width)


def test_a_path_in_a_note_is_shown_as_it_is(tmp_path: Path) -> None:
    report = compare_runs(collect(tmp_path, a=make_result()), "overlaycaps compare --runs 'a[/x]b'")
    assert "--runs 'a[/x]b'" in render(report, None)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_any_encoding_will_do(encoding: str, report: Report) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    print_report(report, Console(file=stream, force_terminal=False))
    stream.flush()
    shown = raw.getvalue().decode(encoding)
    assert "72.08 % (71.04 to 73.11)" in shown
    assert ("─" in shown) == (encoding == "utf-8")


def test_prose_is_wrapped_where_figures_would_be_turned() -> None:
    table = Table(
        "Things",
        (Column("name", "name"), Column("summary", "summary", wraps=True)),
        ((Cell("one", "one"), Cell("many words " * 12, "")),),
    )
    stream = io.StringIO()
    print_table(table, Console(file=stream, force_terminal=True, width=60, color_system=None))
    lines = stream.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 60
    assert sum("many" in line for line in lines) >= 3
    assert stream.getvalue().count("many words") + stream.getvalue().count("many\n") >= 8
