"""``overlaycaps runs``: what it prints where, with which exit code, and that it costs no import of torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, read_tree
from tests.report.samples import make_result
from tests.report.test_run_list import begin, make_line

SCRIPT = """
import sys
from overlaycaps.cli import main
try:
    main()
finally:
    print([name for name in ("torch", "h5py", "PIL") if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a finished run, a failed one, an interrupted one and a folder that is none."""
    begin(tmp_path / "runs", "a", result=json.dumps(make_result()))
    begin(tmp_path / "runs", "b", failure='{"message": "the disk is full."}')
    begin(tmp_path / "runs", "c[red]", metrics=make_line(1, 100), last=b"state")
    (tmp_path / "runs/notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_run_is_listed_with_what_is_to_be_said_of_it(shelf: Path, cli: Cli) -> None:
    before = read_tree(shelf)
    outcome = cli("runs")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    lines = [line.strip() for line in outcome.stdout.splitlines() if line.strip()]
    assert lines[0] == "Runs in runs"
    rows = {words[0]: words for words in map(str.split, lines[1:-3])}
    assert [rows[name][1] for name in ("a", "b", "c[red]")] == ["finished", "failed", "interrupted"]
    assert "60,000 / 240,000" in " ".join(rows["c[red]"])
    assert lines[-3:] == [
        "b failed: the disk is full.",
        "c[red] was interrupted; continue it with `overlaycaps train --resume 'runs/c[red]'`.",
        "Not runs, skipped: notes.",
    ]
    assert read_tree(shelf) == before


def test_json_is_for_programs(shelf: Path, cli: Cli) -> None:
    shutil.move(shelf / "runs", shelf / "others")
    outcome = cli("runs", "--runs", "others", "--json")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    report = json.loads(outcome.stdout)
    assert report["schema"] == "overlaycaps.report"
    (table,) = report["tables"]
    assert [row["state"] for row in table["rows"]] == ["finished", "failed", "interrupted"]
    assert [row["images"]["seen"] for row in table["rows"]] == [240_000, 0, 60_000]
    assert len(report["notes"]) == 3


def test_an_empty_folder_is_no_failure_but_a_missing_one_is(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("runs").exit_code == 1
    assert "runs is not a folder with runs; train one first: `overlaycaps train --model caps`." in cli("runs").error
    (tmp_path / "runs").mkdir()
    outcome = cli("runs")
    assert (outcome.exit_code, outcome.stderr) == (0, "")
    assert "`overlaycaps train --model caps` starts one." in outcome.stdout


@pytest.mark.parametrize("words", [["runs"], ["runs", "--json"]], ids=" ".join)
def test_torch_is_not_imported(words: list[str], shelf: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words, "--runs", str(shelf / "runs")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")
    assert "interrupted" in done.stdout
