"""The report says what the results say: every figure, every verdict, every reservation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from overlaycaps.report.comparison import compare_runs
from overlaycaps.report.table import Report
from tests.report.samples import collect, collect_four, make_result, make_scores, write_run


def find_row(report: Report, table: int, run: str) -> dict[str, tuple[str, Any]]:
    found = report.tables[table]
    (row,) = [row for row in found.rows if row[0].text == run]
    return {column.key: (cell.text, cell.value) for column, cell in zip(found.columns, row, strict=True)}


def make_report(tmp_path: Path, **results: dict[str, Any]) -> Report:
    return compare_runs(collect(tmp_path, **results), "overlaycaps compare")


def test_every_figure_of_the_main_table(tmp_path: Path) -> None:
    report = compare_runs(collect_four(tmp_path), "overlaycaps compare")
    row = find_row(report, 0, "caps-small-240k-seed0")
    assert {key: text for key, (text, _) in row.items()} == {
        "run": "caps-small-240k-seed0",
        "model": "caps",
        "pose": "vector",
        "routing": "attention x 2",
        "size": "small",
        "parameters": "26,605",
        "matched_to": "cnn-pool, cnn",
        "images_seen": "240,000",
        "exact_match": "72.08 % (71.04 to 73.11)",  # 5190 of 7200; Wilson
        "exact_match_single": "90.00 %",
        "exact_match_overlaid": "68.50 %",
        "hamming_loss": "0.0512",
        "train_time_s": "8 min 32 s",
        "images_per_s": "468",
        "device": "cpu fp32",
    }
    assert row["parameters"][1] == 26_605
    assert row["exact_match"][1]["correct"] == 5190
    assert row["exact_match"][1]["low"] == pytest.approx(0.71035, abs=1e-4)
    cnn = find_row(report, 0, "cnn-small-240k-seed0")
    assert cnn["matched_to"] == ("caps-matrix, caps", ["caps-matrix", "caps"])
    assert cnn["pose"] == ("-", None)
    assert cnn["routing"][0] == "-"
    assert cnn["exact_match"][0].startswith("74.03 %")


def test_every_figure_of_the_other_rules(tmp_path: Path) -> None:
    report = make_report(tmp_path, only=make_result("caps"))
    assert {key: text for key, (text, _) in find_row(report, 1, "only").items()} == {
        "run": "only",
        "validation_exact_match": "72.08 %",  # (540 + 2055) of 3600
        "exact_match": "72.08 %",
        "top_k": "74.58 %",  # 5370 of 7200
        "half_credit": "87.50 %",
        "macro_f1": "0.8734",
    }


def test_a_split_without_singles_states_nothing_of_them(tmp_path: Path) -> None:
    scores = make_scores(0, 0, 4110, 6000)
    report = make_report(tmp_path, only=make_result(test=scores))
    assert find_row(report, 0, "only")["exact_match_single"][0] == "-"


def test_the_matching_table_adds_up(tmp_path: Path) -> None:
    report = compare_runs(collect_four(tmp_path), "overlaycaps compare")
    table = report.tables[2]
    total = dict(zip([column.key for column in table.columns], [cell.text for cell in table.rows[-1]], strict=True))
    assert total["neurons"] == "4,242"
    assert total["parameters_caps"] == "26,605"
    assert total["parameters_cnn-pool"] == "4,658"
    assert len(report.tables) == 3


def test_models_that_do_not_match_share_no_matching_table(tmp_path: Path) -> None:
    other = make_result("cnn")
    other["model"]["matching"][0]["neurons"] += 1
    report = make_report(tmp_path, a=make_result("caps"), b=other)
    assert find_row(report, 0, "a")["matched_to"] == ("no run yet", [])
    assert len(report.tables) == 4


@pytest.mark.parametrize(
    ("caps_overlays", "words"),
    [
        (
            4110,
            "72.08 % against cnn 74.03 % exact match: capsules lose by 1.94 points; the 95 % intervals do not overlap",
        ),
        (
            4500,
            "77.50 % against cnn 74.03 % exact match: capsules win by 3.47 points; the 95 % intervals do not overlap",
        ),
        (4240, "73.89 % against cnn 74.03 % exact match: -0.14 points, but the 95 % intervals overlap"),
    ],
)
def test_the_verdict_in_words(caps_overlays: int, words: str, tmp_path: Path) -> None:
    caps = make_result("caps", test=make_scores(1080, 1200, caps_overlays, 6000))
    cnn = make_result("cnn")
    if caps_overlays == 4110:  # enough samples that the intervals part
        caps["test"], cnn["test"] = make_scores(10800, 12000, 41100, 60000), make_scores(11000, 12000, 42300, 60000)
    report = make_report(tmp_path, a=caps, b=cnn)
    (verdict,) = [note for note in report.notes if "against" in note]
    assert words in verdict
    assert verdict.startswith("caps (attention x 2)")
    assert any("from seed to seed is not in them" in note.replace("\n", " ") for note in report.notes)


@pytest.mark.parametrize(
    ("path", "value", "note"),
    [
        ("data__digest", "ff" * 32, "Different data"),
        ("training__images_seen", 120_000, "Different images to see"),
        ("training__seed", 1, "Different seed"),
    ],
)
def test_unlike_conditions_get_a_warning_and_no_verdict(path: str, value: object, note: str, tmp_path: Path) -> None:
    report = make_report(tmp_path, a=make_result("caps"), b=make_result("cnn", **{path: value}))
    assert not any("against" in text for text in report.notes)
    (warning,) = [text for text in report.notes if text.startswith(note)]
    assert warning.endswith("compare only within a; within b.")


@pytest.mark.parametrize(
    ("model", "changes", "command"),
    [
        ("caps", {}, "overlaycaps train --model cnn"),
        ("caps-matrix", {}, "overlaycaps train --model cnn"),
        ("cnn-pool", {}, "overlaycaps train --model caps"),
        (
            "caps",
            {"training__images_seen": 5000, "model__size": "tiny", "data__path": "my data.h5", "training__seed": 3},
            "overlaycaps train --model cnn --images 5000 --size tiny --data 'my data.h5' --seed 3",
        ),
    ],
)
def test_a_missing_partner_is_named_with_its_command(
    model: str, changes: dict[str, Any], command: str, tmp_path: Path
) -> None:
    report = make_report(tmp_path, only=make_result(model, **changes))
    (note,) = [text for text in report.notes if "train it with" in text]
    assert note.endswith(f"train it with `{command}`.")


def test_partners_are_named_once_and_only_for_models_that_have_one(tmp_path: Path) -> None:
    results = {"a": make_result("caps"), "b": make_result("caps-matrix"), "c": make_result("cnn")}
    results["c"]["model"]["name"] = "resnet18"
    results["c"]["model"]["matching"][0]["neurons"] += 1
    (note,) = [text for text in make_report(tmp_path, **results).notes if "train it with" in text]
    assert note == (
        "No matched baseline on the same data, images and seed yet for a, b; train it with "
        "`overlaycaps train --model cnn`."
    )


@pytest.mark.parametrize(("images", "is_small"), [(99_999, True), (100_000, False)])
def test_a_small_budget_is_called_small(images: int, is_small: bool, tmp_path: Path) -> None:
    report = make_report(tmp_path, only=make_result(training__images_seen=images))
    assert any("budget is small" in note for note in report.notes) == is_small


def test_unfinished_and_foreign_folders_are_named_but_not_in_the_tables(tmp_path: Path) -> None:
    write_run(tmp_path, "begun", None)
    (tmp_path / "notes").mkdir()
    report = make_report(tmp_path, done=make_result())
    assert [row[0].text for row in report.tables[0].rows] == ["done"]
    assert any(note.startswith("Unfinished, not in the tables: begun;") for note in report.notes)
    assert "Not runs, skipped: notes." in report.notes


def test_the_origin_names_command_hardware_versions_seeds_and_n(tmp_path: Path) -> None:
    report = make_report(tmp_path, only=make_result(training__seed=4))
    assert report.notes[-1] == (
        "Made by `overlaycaps compare`; trained on AMD EPYC 9B45, 2 threads, overlaycaps 0.1.0, torch 2.13.0+cpu, "
        "numpy 2.4.6, python 3.11.7; seeds 4; n = 7,200 test samples."
    )
