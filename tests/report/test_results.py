"""Results are data that anyone may have made: read strictly, refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from overlaycaps.errors import UserError
from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.report.results import collect_runs, read_result
from tests.report.samples import collect_four, make_result, write_run


def read(tmp_path: Path, result: dict[str, Any]) -> Any:
    return read_result(write_run(tmp_path, "run", result) / "result.json")


def test_a_result_is_read_field_by_field(tmp_path: Path) -> None:
    result = read(tmp_path, make_result("caps"))
    assert (result.name, result.model, result.pose, result.routing, result.iterations) == (
        "run",
        "caps",
        "vector",
        "attention",
        2,
    )
    assert result.exact == Proportion(1080 + 4110, 7200)
    assert result.exact_single == Proportion(1080, 1200)
    assert result.neurons == (2592, 1024, 576, 40, 10)
    assert result.parameters == 26_605
    assert (result.images_seen, result.train_time_s, result.half_credit) == (240_000, 512.3, 0.875)
    assert result.source["environment"]["device_name"] == "AMD EPYC 9B45"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("schema", "other", "is not a result of overlaycaps"),
        ("schema_version", 2, "has version 2; this program reads 1. Upgrade"),
        ("model__name", 3, r"model\.name should be text, but is 3"),
        ("model__parameters", 1.5, r"model\.parameters should be a whole number"),
        ("model__parameters", True, r"model\.parameters should be a whole number"),
        ("model__parameters", -1, r"model\.parameters should be a whole number, 0 or more"),
        ("model__matching", [3], r"model\.matching\[0\]\. is not a JSON object"),
        ("model__pose", 1, r"model\.pose should be text"),
        ("training__train_time_s", "long", r"training\.train_time_s should be a number"),
        ("training__images_per_s", float("nan"), r"training\.images_per_s should be a number"),
        ("test__hamming_loss", None, r"test\.hamming_loss should be a number"),
        ("test__top_k", {"correct": 8, "total": 7}, r"test\.top_k\.correct should be at most total"),
        ("test__exact_match", {"correct": 1, "total": 7200}, "is not the sum of singles and overlays"),
        ("environment", [], r"environment\. is not a JSON object"),
    ],
)
def test_a_field_that_is_wrong_is_named(path: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, make_result(**{path: value}))
    assert str(tmp_path / "run" / "result.json") in str(caught.value)


@pytest.mark.parametrize("part", ["schema", "model", "training", "data", "environment", "validation", "test"])
def test_a_part_that_is_missing_is_named(part: str, tmp_path: Path) -> None:
    result = make_result()
    del result[part]
    with pytest.raises(UserError, match=rf"result\.json: {part} should be .*, but is missing"):
        read(tmp_path, result)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\x00", "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path, "run", None)
    (folder / "result.json").write_text(text)
    with pytest.raises(UserError, match=r"result\.json"):
        read_result(folder / "result.json")


def test_runs_are_collected_by_name_and_others_kept_apart(tmp_path: Path) -> None:
    collect_four(tmp_path)
    write_run(tmp_path, "begun", None)
    (tmp_path / "notes").mkdir()
    (tmp_path / "a file").write_text("x")
    collection = collect_runs(tmp_path)
    names = ["caps-matrix", "caps", "cnn-pool", "cnn"]
    assert [run.name for run in collection.runs] == [f"{name}-small-240k-seed0" for name in names]
    assert collection.unfinished == ("begun",)
    assert collection.skipped == ("notes",)


def test_without_finished_runs_the_next_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is not a folder with runs; .*`overlaycaps train --model caps`"):
        collect_runs(tmp_path / "none")
    write_run(tmp_path, "begun", None)
    with pytest.raises(
        UserError, match=r"but unfinished ones: begun; continue with `overlaycaps train --resume .*begun`"
    ):
        collect_runs(tmp_path)


def test_a_run_is_named_after_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "renamed", make_result())
    assert json.loads((folder / "result.json").read_text())["run"] != "renamed"
    assert collect_runs(tmp_path).runs[0].name == "renamed"
