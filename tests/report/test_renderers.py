"""Markdown, JSON and the files that they go to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlaycaps.errors import UserError
from overlaycaps.report.comparison import compare_runs
from overlaycaps.report.renderers import RENDERERS
from overlaycaps.report.table import Cell, Column, Report, Table
from overlaycaps.report.write import write_report
from tests.report.samples import collect_four


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return compare_runs(collect_four(tmp_path / "runs"), "overlaycaps compare")


@pytest.mark.parametrize("name", RENDERERS)
def test_every_renderer_shows_every_run(name: str, report: Report) -> None:
    text = RENDERERS[name].load()(report)
    for row in report.tables[0].rows:
        assert row[0].text in text


def test_markdown_has_a_row_a_run_under_one_header(report: Report) -> None:
    lines = RENDERERS["md"].load()(report).splitlines()
    start = lines.index("## Runs") + 2
    table = lines[start : start + 6]
    assert {line.count("|") for line in table} == {len(report.tables[0].columns) + 1}
    assert table[0].startswith("| run | model |")
    assert "72.08 % (71.04 to 73.11)" in table[3]
    assert lines[start + 6] == ""


def test_markdown_escapes_what_would_be_markup() -> None:
    name = "a|b*c_[d](e)<script>`f`\n# g"
    report = Report("T", (Table("t", (Column("k", "k"),), ((Cell(name, name),),)),), ("run `a*b` *now*",))
    lines = RENDERERS["md"].load()(report).splitlines()
    assert r"| a\|b\*c\_\[d\](e)\<script\>\`f\` # g |" in lines
    assert r"- run `a*b` \*now\*" in lines


def test_json_has_a_schema_values_and_sources(report: Report) -> None:
    data = json.loads(RENDERERS["json"].load()(report))
    assert (data["schema"], data["schema_version"]) == ("overlaycaps.report", 1)
    rows = {row["run"]: row for row in data["tables"][0]["rows"]}
    assert rows["caps-small-240k-seed0"]["exact_match"]["correct"] == 5190
    assert rows["cnn-small-240k-seed0"]["parameters"] == 27_058
    assert rows["cnn-small-240k-seed0"]["pose"] is None
    assert [source["model"]["name"] for source in data["sources"]] == ["caps-matrix", "caps", "cnn-pool", "cnn"]
    assert data["notes"] == list(report.notes)


def test_reports_are_written_and_refreshed(report: Report, tmp_path: Path) -> None:
    paths = write_report(report, tmp_path)
    assert [path.name for path in paths] == ["report.md", "report.json"]
    first = [path.read_text(encoding="utf-8") for path in paths]
    shorter = Report(report.title, report.tables[:1], ())
    write_report(shorter, tmp_path)
    assert [path.read_text(encoding="utf-8") for path in paths] != first


@pytest.mark.parametrize("name", ["report.md", "report.json"])
@pytest.mark.parametrize("text", ["my own notes", '{"schema": "mine"}', "[]", ""])
def test_a_file_of_the_users_is_kept_and_nothing_else_written(
    name: str, text: str, report: Report, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=f"{name} is not a report of overlaycaps; .*compare --force"):
        write_report(report, tmp_path)
    assert (tmp_path / name).read_text() == text
    assert sorted(tmp_path.iterdir()) == before
    write_report(report, tmp_path, force=True)
    assert (tmp_path / name).read_text() != text


def test_a_folder_that_is_not_there_is_named(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none/report\.md could not be written"):
        write_report(report, tmp_path / "none")
