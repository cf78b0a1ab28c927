"""The report of an inspection shows the figures of a hand-made one."""

from __future__ import annotations

import json
from typing import Any

from overlaycaps.report.inspection import describe_inspection, report_inspection
from overlaycaps.report.renderers.markdown import render

SPLIT = {
    "num_samples": 8,
    "by_count": [2, 6],
    "by_class": [5, 3, 6],
    "by_overlap": [0, 3, 2, 1, 0, 0, 0, 0, 0, 0],
    "mean_overlap": 0.21875,
    "num_digits": 40,
}


def make_content(**changes: Any) -> dict[str, Any]:
    content = {
        "path": "d.h5",
        "size_bytes": 3 * 2**20,
        "faults": [],
        "spec": {"protocol": "diverse", "count_weights": [0.25, 0.75], "class_names": ["a", "b", "c"]},
        "shard": "1/1",
        "parts": [],
        "digit_source": "tiny",
        "digit_source_digest": "ab" * 32,
        "content_digest": "cd" * 32,
        "splits": {"train": SPLIT},
    }
    return {**content, **changes}


def list_rows(content: dict[str, Any], title: str) -> list[list[str]]:
    (table,) = (table for table in report_inspection(content).tables if table.title == title)
    return [[cell.text for cell in row] for row in table.rows]


def test_counts_and_shares_are_those_of_the_file() -> None:
    content = make_content()
    rows = list_rows(content, "Samples by number of digits")
    assert rows == [["train", "8", "40", "2 (25.00 %)", "6 (75.00 %)", "0.219"]]
    rows = list_rows(content, "Samples that show each class")
    assert rows == [["a", "5 (62.50 %)"], ["b", "3 (37.50 %)"], ["c", "6 (75.00 %)"]]
    rows = list_rows(content, "Overlays by overlap")
    assert rows[:4] == [
        ["0.0 to 0.1", "0 (0.00 %)"],
        ["0.1 to 0.2", "3 (50.00 %)"],
        ["0.2 to 0.3", "2 (33.33 %)"],
        ["0.3 to 0.4", "1 (16.67 %)"],
    ]
    assert len(rows) == 10
    choices = dict(list_rows(content, "File and spec"))
    assert (choices["size"], choices["count_weights"], choices["class_names"]) == ("3.0 MiB", "0.25 0.75", "a b c")
    assert choices["content digest"] == "cd" * 32


def test_a_split_without_overlays_has_no_shares() -> None:
    content = make_content(splits={"train": {**SPLIT, "by_overlap": [0] * 10, "mean_overlap": None}})
    assert list_rows(content, "Samples by number of digits")[0][-1] == "-"
    assert {row[1] for row in list_rows(content, "Overlays by overlap")} == {"-"}


def test_faults_are_numbered_and_their_absence_is_said() -> None:
    assert report_inspection(make_content()).notes[0].startswith("No fault: ")
    faults = ["dataset x is missing; generate the file again", "y; z"]
    notes = report_inspection(make_content(faults=faults)).notes
    assert notes == ("fault 1 of 2: dataset x is missing; generate the file again", "fault 2 of 2: y; z")


def test_a_file_that_is_none_has_faults_alone() -> None:
    content = make_content(spec=None, splits={}, faults=["not an HDF5 file; give another"])
    report = report_inspection(content)
    assert report.tables == ()
    assert "fault 1 of 1: not an HDF5 file" in render(report)


def test_the_json_has_a_version() -> None:
    described = json.loads(json.dumps(describe_inspection(make_content())))
    assert (described["schema"], described["schema_version"]) == ("overlaycaps.inspection", 1)
    assert described["splits"]["train"]["by_count"] == [2, 6]
