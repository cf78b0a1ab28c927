"""The runs in a folder: their states, how far they are, and that no file in it can end the listing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.config import SIZES
from overlaycaps.errors import UserError
from overlaycaps.models import MODELS, build_model
from overlaycaps.report.renderers import RENDERERS
from overlaycaps.report.run_list import list_runs
from overlaycaps.report.table import Report
from overlaycaps.routing import ROUTINGS
from tests.report.samples import make_result

ROOT = Path(__file__).parents[2]
NOW_S = datetime(2026, 5, 4, 12, 0).timestamp()
DEEP = "[" * 100_000


def make_config(**changes: Any) -> dict[str, Any]:
    """Return the configuration of a run; ``changes`` replace fields of its training or its model."""
    training = {"model": "caps", "size": "small", "seed": 3, "num_images": 240_000}
    model = {"routing": "attention", "iterations": 2}
    for part in (training, model):
        part.update({name: value for name, value in changes.items() if name in part})
    return {"schema": "overlaycaps.run", "schema_version": 1, "training": training, "model": model}


def make_line(epoch: int, correct: int, total: int = 400) -> str:
    """Return the line of an evaluation after so many epochs of 60,000 images."""
    exact = {"correct": correct, "total": total}
    entry = {"epoch": epoch, "images_seen": epoch * 60_000, "validation": {"exact_match": exact}}
    return json.dumps(entry) + "\n"


def begin(runs: Path, name: str = "run", config: Any = None, **files: str | bytes) -> Path:
    """Write a run's folder, last touched a minute ago; ``files`` are ``metrics``, ``last``, ``result``, ``failure``."""
    folder = runs / name
    folder.mkdir(parents=True)
    text = config if isinstance(config, str) else json.dumps(make_config() if config is None else config)
    names = {"metrics": "metrics.jsonl", "last": "last.pt", "result": "result.json", "failure": "failure.json"}
    for file, content in {"config.json": text, **{names[key]: content for key, content in files.items()}}.items():
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(folder / file, (NOW_S - 60, NOW_S - 60))
    return folder


def show(report: Report, run: str = "run") -> dict[str, str]:
    """Return the texts in the row of a run, by column."""
    (table,) = report.tables
    (row,) = (row for row in table.rows if row[0].text == run)
    return {column.key: cell.text for column, cell in zip(table.columns, row, strict=True)}


def show_one(runs: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the texts in the row of the only run, and the notes; JSON must be able to hold it all."""
    report = list_runs(runs, NOW_S)
    json.loads(RENDERERS["json"].load()(report))
    return show(report), report.notes


@pytest.fixture
def hold() -> Callable[[Path], subprocess.Popen[str]]:
    """Return a function that starts another process, which trains into a folder as far as anyone can tell."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom overlaycaps.train.run_lock import lock_run\n"
        "with lock_run(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )

    def start(folder: Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", script, str(folder)]
        process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    return start


def test_a_row_says_what_the_run_is_and_how_far(tmp_path: Path) -> None:
    metrics = make_line(1, 100) + make_line(2, 300) + make_line(3, 300) + make_line(4, 299)
    folder = begin(tmp_path, metrics=metrics, last=b"state")
    os.utime(folder / "config.json", (NOW_S - 7200, NOW_S - 7200))
    os.utime(folder / "last.pt", (NOW_S - 42, NOW_S - 42))
    report = list_runs(tmp_path, NOW_S)
    assert show(report) == {
        "run": "run",
        "state": "interrupted",
        "model": "caps",
        "routing": "attention x 2",
        "size": "small",
        "seed": "3",
        "images": "240,000 / 240,000",
        "validation_exact_match": "75.00 %",
        "best_epoch": "3",  # of equals the later, as training keeps it
        "last_sign_s": "42 s ago",
        "begun": "2026-05-04T10:00",
    }
    (row,) = json.loads(RENDERERS["json"].load()(report))["tables"][0]["rows"]
    assert row["images"] == {"seen": 240_000, "planned": 240_000}
    assert row["validation_exact_match"] == {"correct": 300, "total": 400}
    assert (row["routing"], row["seed"], row["best_epoch"], row["last_sign_s"]) == (["attention", 2], 3, 3, 42)
    assert datetime.fromisoformat(row["begun"]).timestamp() == NOW_S - 7200


def test_a_run_without_an_evaluation_has_no_best_one(tmp_path: Path) -> None:
    begin(tmp_path)
    shown, notes = show_one(tmp_path)
    assert (shown["images"], shown["validation_exact_match"], shown["best_epoch"]) == ("0 / 240,000", "-", "-")
    assert notes == (f"run was interrupted; continue it with `overlaycaps train --resume {tmp_path / 'run'}`.",)


def test_a_finished_run_shows_its_result(tmp_path: Path) -> None:
    result = make_result("caps", training__best_epoch=2, model__routing="dynamic", model__routing_iterations=3)
    begin(tmp_path, metrics=make_line(1, 1), result=json.dumps(result))
    shown, notes = show_one(tmp_path)
    assert (shown["state"], shown["images"], shown["best_epoch"]) == ("finished", "240,000 / 240,000", "2")
    assert shown["validation_exact_match"] == f"{(1080 // 2 + 4110 // 2) / 3600 * 100:.2f} %"
    assert shown["routing"] == "dynamic x 3"
    assert notes == ()


def test_a_failed_run_says_why_in_one_line(tmp_path: Path) -> None:
    begin(tmp_path, failure=json.dumps({"message": "the loss is not finite;\n  lower --lr."}))
    begin(tmp_path, "long", failure=json.dumps({"message": "x" * 100_000}))
    report = list_runs(tmp_path, NOW_S)
    assert show(report)["state"] == show(report, "long")["state"] == "failed"
    assert report.notes[1] == "run failed: the loss is not finite; lower --lr."
    assert report.notes[0].startswith("long failed: xxx")
    assert len(report.notes[0]) < 1000


@pytest.mark.parametrize("failure", ["", "[]", "{}", '{"message": ' + DEEP, '{"message": "' + "x" * 2**20 + '"}'])
def test_a_damaged_reason_is_still_a_failure(failure: str, tmp_path: Path) -> None:
    begin(tmp_path, failure=failure)
    shown, notes = show_one(tmp_path)
    assert shown["state"] == "failed"
    assert len(notes) == 1
    assert "why is" in notes[0]


def test_a_run_is_running_until_its_process_is_killed(
    tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    folder = begin(tmp_path, last=b"state")
    before, _ = show_one(tmp_path)
    assert before["state"] == "interrupted"
    with hold(folder) as process:
        try:
            during = show_one(tmp_path)
        finally:
            process.kill()  # SIGKILL: it has no time to tidy up
    assert during == ({**before, "state": "running"}, ())
    assert (folder / "train.lock").exists()
    shown, notes = show_one(tmp_path)
    assert shown["state"] == "interrupted"
    assert "overlaycaps train --resume" in notes[0]


def test_a_run_is_running_whatever_else_lies_in_its_folder(
    tmp_path: Path, hold: Callable[[Path], subprocess.Popen[str]]
) -> None:
    folder = begin(tmp_path, failure='{"message": "before"}', result=json.dumps(make_result()))
    with hold(folder) as process:
        try:
            running = show_one(tmp_path)
            (folder / "config.json").unlink()  # a run that begins just now
            beginning = show_one(tmp_path)
        finally:
            process.kill()
    assert (running[0]["state"], running[1]) == ("running", ())
    assert (beginning[0]["state"], beginning[0]["model"], beginning[1]) == ("running", "-", ())


def test_states_are_told_apart_in_one_folder(tmp_path: Path) -> None:
    failure = '{"message": "no"}'
    begin(tmp_path, "a", failure=failure, result=json.dumps(make_result()))
    begin(tmp_path, "b", failure=failure, last=b"state")
    begin(tmp_path, "c", last=b"state")
    states = [(row[0].text, row[1].text) for row in list_runs(tmp_path, NOW_S).tables[0].rows]
    assert states == [("a", "finished"), ("b", "failed"), ("c", "interrupted")]


def test_folders_that_are_no_runs_are_named_together(tmp_path: Path) -> None:
    begin(tmp_path)
    begin(tmp_path, "thesis", {"schema": "other"})
    begin(tmp_path, "list", [1])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/result.json").write_text(json.dumps(make_result()))
    (tmp_path / "a file").write_text("x")
    report = list_runs(tmp_path, NOW_S)
    assert [row[0].text for row in report.tables[0].rows] == ["run"]
    assert report.notes[1:] == ("Not runs, skipped: list, notes, thesis.",)


def test_without_runs_the_first_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is not a folder with runs; .*`overlaycaps train --model caps`"):
        list_runs(tmp_path / "none", NOW_S)
    report = list_runs(tmp_path, NOW_S)
    assert report.tables[0].rows == ()
    assert report.notes == (f"There is no run in {tmp_path} yet; `overlaycaps train --model caps` starts one.",)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("\x00", "is damaged"),
        (DEEP, "is damaged"),
        ('"' + "x" * 2**20 + '"', "longer than 1 MiB"),
        ({**make_config(), "schema_version": 9}, "has version 9; this program reads 1. Upgrade"),
        ({**make_config(), "schema_version": DEEP}, "schema_version"),
        ({**make_config(), "training": [3]}, "training.model"),
        ({**make_config(), "model": None}, "model.routing"),
        (make_config(seed=True), "training.seed"),
        (make_config(seed=-1), "training.seed"),
        (make_config(num_images=10**300), "training.num_images"),
        (make_config(num_images=float("nan")), "training.num_images"),
        (make_config(size=["small"]), "training.size"),
        (make_config(model="x" * 1000), "training.model"),
        (make_config(iterations="2"), "model.iterations"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "-",
)
def test_a_damaged_configuration_is_named_and_the_rest_is_shown(config: Any, word: str, tmp_path: Path) -> None:
    begin(tmp_path, config=config, metrics=make_line(1, 100))
    shown, (note,) = show_one(tmp_path)
    assert [shown[key] for key in ("model", "routing", "size", "seed")] == ["-"] * 4
    assert (shown["state"], shown["images"]) == ("interrupted", "60,000 / -")
    assert (shown["validation_exact_match"], shown["last_sign_s"]) == ("25.00 %", "1 min 00 s ago")
    assert str(tmp_path / "run/config.json") in note
    assert word in note


@pytest.mark.parametrize(
    "line",
    [
        "\n",
        "{\n",
        "[1]\n",
        "\udcff\n",
        DEEP + "\n",
        "1" * 10_000 + "\n",
        make_line(2, 401),
        make_line(2, 0, 0),
        make_line(2, -1),
        make_line(True, 1),
        make_line(10**30, 1),
        make_line(2, 1).replace("correct", "Correct"),
        make_line(2, 1).replace("120000", "1.5"),
        '"' + "x" * (2**20 + 1),
    ],
    ids=lambda line: repr(line)[:30],
)
def test_a_damaged_line_of_metrics_is_named(line: str, tmp_path: Path) -> None:
    raw = (make_line(1, 100) + line).encode(errors="surrogateescape")
    begin(tmp_path, metrics=raw, last=b"state")
    shown, notes = show_one(tmp_path)
    assert (shown["model"], shown["images"]) == ("caps", "- / 240,000")
    assert (shown["validation_exact_match"], shown["best_epoch"]) == ("-", "-")
    assert notes[0].startswith(f"{tmp_path / 'run/metrics.jsonl'}, line 2, is damaged: ")
    assert "train --resume" in notes[1]


def test_a_line_that_is_not_written_to_its_end_is_no_damage(tmp_path: Path) -> None:
    begin(tmp_path, metrics=make_line(1, 100) + make_line(2, 200)[:-20])
    shown, notes = show_one(tmp_path)
    assert (shown["images"], shown["best_epoch"], len(notes)) == ("60,000 / 240,000", "1", 1)


@pytest.mark.parametrize(
    ("result", "word"),
    [
        ("{", "could not be read"),
        (DEEP, "could not be read"),
        (json.dumps(make_result(training__lr=0)).replace('"lr": 0', '"lr": 1' + "0" * 400), "training.lr"),
        (json.dumps(make_result(training__best_epoch="4")), "training.best_epoch"),
        (json.dumps(make_result(training__images_seen=10**30)), "training.images_seen"),
        (json.dumps(make_result(model__routing="x" * 1000)), "model.routing"),
        (json.dumps(make_result(validation__exact_match={"correct": 0, "total": 0})), "0 of 0"),
    ],
    ids=lambda value: value if len(value) < 40 else "-",
)
def test_a_damaged_result_is_named(result: str, word: str, tmp_path: Path) -> None:
    begin(tmp_path, metrics=make_line(1, 100), result=result)
    shown, (note,) = show_one(tmp_path)
    assert (shown["state"], shown["model"], shown["images"]) == ("finished", "caps", "- / 240,000")
    assert (shown["validation_exact_match"], shown["best_epoch"]) == ("-", "-")
    assert str(tmp_path / "run/result.json") in note
    assert word in note


def test_large_metrics_are_not_read(tmp_path: Path) -> None:
    folder = begin(tmp_path, metrics=make_line(1, 100))
    os.truncate(folder / "metrics.jsonl", 64 * 2**20 + 1)
    tracemalloc.start()
    try:
        started_s = time.perf_counter()
        shown, notes = show_one(tmp_path)
        assert time.perf_counter() - started_s < 1
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    assert shown["best_epoch"] == "-"
    assert "metrics.jsonl is damaged: it is larger than 64 MiB" in notes[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("file", ["metrics.jsonl", "result.json", "failure.json", "train.lock"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(file: str, tmp_path: Path) -> None:
    os.mkfifo(begin(tmp_path) / file)
    assert show_one(tmp_path)[0]["state"] == "interrupted"


def test_a_folder_that_cannot_be_read_does_not_end_the_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    begin(tmp_path, "theirs")
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent.name == "theirs":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    report = list_runs(tmp_path, NOW_S)
    assert (show(report)["model"], set(show(report, "theirs").values())) == ("caps", {"theirs", "-"})
    assert report.notes[-1] == f"{tmp_path / 'theirs/config.json'} could not be read: Permission denied."


@pytest.mark.parametrize(("time_s", "age"), [(NOW_S + 3600, "0 s ago"), (NOW_S - 90_000, "25 h 00 min ago")])
def test_any_date_of_a_file_will_do(time_s: float, age: str, tmp_path: Path) -> None:
    os.utime(begin(tmp_path) / "config.json", (time_s, time_s))
    assert show_one(tmp_path)[0]["last_sign_s"] == age


@pytest.mark.parametrize("time_s", [2.0**40, 2.0**60, 2.0**70])
def test_a_date_beyond_the_calendar_is_not_shown(
    time_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path)
    # Not every file system has such dates.
    monkeypatch.setattr("overlaycaps.report.run_list._read_mtime_s", lambda _file: time_s)
    shown, _ = show_one(tmp_path)
    assert (shown["begun"], shown["last_sign_s"]) == ("-", "0 s ago")


@pytest.mark.parametrize("name", MODELS)
def test_the_routing_of_a_run_is_the_one_that_its_model_uses(name: str, tmp_path: Path) -> None:
    for routing in ROUTINGS:
        with torch.device("meta"):  # only what a model says of itself is wanted
            model = build_model(name, replace(SIZES["tiny"], routing=routing, iterations=3))
        described = model.describe_routing()
        begin(tmp_path, routing, make_config(model=name, routing=routing, iterations=3))
        expected = f"{described['routing']} x {described['routing_iterations']}" if described["routing"] else "-"
        assert show(list_runs(tmp_path, NOW_S), routing)["routing"] == expected


def test_of_a_model_that_is_not_ours_no_routing_is_claimed(tmp_path: Path) -> None:
    begin(tmp_path, config=make_config(model="theirs:build"))
    shown, _ = show_one(tmp_path)
    assert (shown["model"], shown["routing"]) == ("theirs:build", "-")
