"""Run folders: ours or left alone, never overwritten unasked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlaycaps.errors import UserError
from overlaycaps.train.run_folder import RunFolder


def test_a_new_folder_says_what_the_run_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    folder.create({"training": {"seed": 3}}, force=False)
    assert folder.read_config()["training"] == {"seed": 3}
    assert json.loads(folder.config_file.read_text())["schema"] == "overlaycaps.run"
    assert not folder.is_finished()
    assert not folder.can_resume()


def test_a_finished_run_is_replaced_only_by_force(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create({"training": 1}, force=False)
    folder.write_result({"x": 1})
    folder.best_file.write_bytes(b"weights")
    (folder.path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds a finished run; pass --force"):
        folder.create({"training": 2}, force=False)
    assert folder.read_config()["training"] == 1
    folder.create({"training": 2}, force=True)
    assert folder.read_config()["training"] == 2
    assert sorted(file.name for file in folder.path.iterdir()) == ["config.json", "notes.txt"]


def test_an_unfinished_run_is_told_how_to_continue(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.create({}, force=False)
    folder.last_file.write_bytes(b"state")
    with pytest.raises(UserError, match=r"unfinished run; continue it with `overlaycaps train --resume .*a`"):
        folder.create({}, force=False)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_not_ours_is_left_alone(force: bool, tmp_path: Path) -> None:
    path = tmp_path / "thesis"
    path.mkdir()
    (path / "config.json").write_text('{"schema": "something else"}')
    with pytest.raises(UserError, match="thesis is not a run folder of overlaycaps"):
        RunFolder(path).create({}, force=force)
    (path / "config.json").unlink()
    (path / "chapter.tex").write_text("words")
    with pytest.raises(UserError, match="thesis is not a run folder of overlaycaps"):
        RunFolder(path).create({}, force=force)
    assert [file.name for file in path.iterdir()] == ["chapter.tex"]


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with pytest.raises(UserError, match="a is not a folder"):
        RunFolder(tmp_path / "a").create({}, force=True)
    with pytest.raises(UserError, match="could not be written"):
        RunFolder(tmp_path / "a" / "b").create({}, force=False)


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"schema": "overlaycaps.run", "schema_version": 9}', "\x00"])
def test_a_damaged_config_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        RunFolder(tmp_path).read_config()


def test_metrics_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for epoch in (1, 2, 3):
        folder.append_metrics({"epoch": epoch})
    with folder.metrics_file.open("a") as file:
        file.write('{"epoch": 1')  # a crash while writing
    folder.keep_metrics_until(2)
    assert [json.loads(line) for line in folder.metrics_file.read_text().splitlines()] == [
        {"epoch": 1},
        {"epoch": 2},
    ]
