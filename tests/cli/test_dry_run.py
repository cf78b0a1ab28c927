"""``train --dry-run``: what would run, and not a byte written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from overlaycaps.train import grid
from tests.cli.conftest import Cli, read_tree

TRAIN = ("train", "--size", "tiny", "--cpu", "--images", "250", "--batch-size", "20")


def read_rows(stdout: str) -> list[list[str]]:
    """Return the cells of the table, row by row; two spaces or more stand between them."""
    return [re.split(r" {2,}", line.strip()) for line in stdout.splitlines() if line.strip().startswith("runs/")]


def test_a_dry_run_says_what_would_run_and_writes_nothing(desk: Path, cli: Cli) -> None:
    before = read_tree(desk)
    told = cli(*TRAIN, "--model", "cnn", "--dry-run")
    assert told.exit_code == 0
    assert told.stderr == ""
    assert read_tree(desk) == before
    assert "Nothing was written." in told.stdout
    [row] = read_rows(told.stdout)

    assert cli(*TRAIN, "--model", "cnn").exit_code == 0
    [folder] = Path("runs").iterdir()
    result = json.loads((folder / "result.json").read_text())
    parameters, training = result["model"]["parameters"], result["training"]
    assert row[:4] == [str(folder), "all", "cnn", f"{parameters:,}"]
    assert row[5:8] == ["250", str(training["steps"]), str(training["num_epochs"])]
    assert row[7] == "3"
    assert re.fullmatch(r"\d+", row[8])
    assert re.fullmatch(r"[\d.]+ MiB", row[-1])
    assert float(row[-1].split()[0]) > 0


def test_a_dry_run_of_a_grid_tells_what_is_done_and_what_goes_on(
    desk: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "run_cell_apart", grid.run_cell)
    assert cli(*TRAIN, "--models", "cnn", "--seeds", "0,1").exit_code == 0
    (desk / "runs/cnn-tiny-250-batch20-seed1/result.json").unlink()
    before = read_tree(desk)
    told = cli(*TRAIN, "--models", "caps,cnn", "--seeds", "0-1", "--dry-run")
    assert told.exit_code == 0
    assert read_tree(desk) == before
    assert [row[:3] for row in read_rows(told.stdout)] == [
        ["runs/caps-tiny-250-batch20-seed0", "all", "caps"],
        ["runs/cnn-tiny-250-batch20-seed0", "nothing", "cnn"],
        ["runs/caps-tiny-250-batch20-seed1", "all", "caps"],
        ["runs/cnn-tiny-250-batch20-seed1", "the rest", "cnn"],
    ]
    assert "for 3 runs, less what is done of those that were begun." in told.stdout
    caps, cnn = ([row for row in read_rows(told.stdout) if row[2] == model] for model in ("caps", "cnn"))
    assert len({row[3] for row in caps}) == len({row[3] for row in cnn}) == 1
    assert caps[0][3] != cnn[0][3]


@pytest.mark.parametrize("more", [["--model", "nothing"], ["--batch-size", "0"], ["--resume", "runs/x"]], ids=" ".join)
def test_a_dry_run_refuses_what_a_run_refuses(more: list[str], desk: Path, cli: Cli) -> None:
    before = read_tree(desk)
    refused = cli(*TRAIN, *more, "--dry-run")
    assert refused.exit_code == 2
    assert refused.error
    assert read_tree(desk) == before


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("more", "told"),
    [(["--name", "cnn-tiny-96-seed0"], "holds a finished run; pass --force"), (["--seeds", "0"], "holds another run")],
    ids=["one", "several"],
)
def test_a_dry_run_tells_of_another_run_in_the_folder(more: list[str], told: str, cli: Cli) -> None:
    words = ("train", "--size", "tiny", "--cpu", "--images", "96", "--model", "cnn")
    assert cli(*words, "--lr", "0.1", "--name", "cnn-tiny-96-seed0").exit_code == 0
    before = read_tree(Path())
    refused = cli(*words, *more, "--dry-run")
    assert refused.exit_code == 1
    assert f"runs/cnn-tiny-96-seed0 {told}" in refused.error
    assert read_tree(Path()) == before
    allowed = cli(*words, *more, "--dry-run", "--force")
    assert allowed.exit_code == 0
    assert [row[:2] for row in read_rows(allowed.stdout)] == [["runs/cnn-tiny-96-seed0", "all"]]
    assert read_tree(Path()) == before
