"""Data files as a user meets them: made whole or in parts, looked at, merged, exported; and what a kill leaves."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

import data_gen.sources
from data_gen.store.read import open_dataset
from tests.cli.conftest import Cli, read_tree
from tests.cli.test_processes import COMMAND, make_environment
from tests.data_gen.sources import make_source, write_folder

SMALL = ("--train", "2100", "--valid", "30", "--test", "20")


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty present folder; the bundled digits are replaced by few."""
    monkeypatch.setattr(data_gen.sources, "load_bundled", lambda: make_source(digit_px=28))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_choice_reaches_the_spec(empty: Path, cli: Cli) -> None:
    words = ("--count-weights", "1:1/6,2:1/3,3:1/2", "--max-digits", "4", "--overlap", "0.1:0.6", "--canvas", "40")
    done = cli("generate", "--out", "d.h5", *SMALL, *words, "--max-shift", "6", "--merge", "max", "--workers", "3")
    assert done.exit_code == 0, done.stderr
    with open_dataset("d.h5") as file:
        spec = file.spec
        assert spec.count_weights == (1 / 6, 1 / 3, 1 / 2, 0.0)
        assert (spec.min_overlap, spec.max_overlap, spec.canvas_px, spec.max_shift_px) == (0.1, 0.6, 40, 6)
        digits = file.read_split("train").digits
        assert digits.shape == (2100, 4)
        assert sorted(set((digits >= 0).sum(axis=1))) == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count-weights", "1:1/6,2"], "--count-weights '1:1/6,2': '2' is no weight; write COUNT:WEIGHT"),
        (["--count-weights", "1:-1e400"], "--count-weights '1:-1e400': '1:-1e400' is no weight; write COUNT:WEIGHT"),
        (["--count-weights", "5:1"], "--count-weights: 5 digits are out of range; use 1 to 4"),
        (["--count-weights", "2:1", "--single-fraction", "0.5"], "exclude each other"),
        (["--max-digits", "5"], "--max-digits 5 is out of range; use 1 to 4"),
        (["--overlap", "0.5"], "--overlap '0.5': write MIN:MAX"),
        (["--overlap", "0.5:0.2"], "--overlap 0.5:0.2 is upside down; use 0.2:0.5"),
        (["--overlap", "0:2"], "--overlap 2.0 is out of range; use 0 to 1"),
        (["--overlap", ":0.5", "--max-digits", "1"], "one digit overlaps nothing; leave it out"),
        (["--shard", "0/4"], "--shard 0/4: there is no such shard; use 1/4 to 4/4"),
        (["--shard", "two"], "--shard 'two': write it as NUMBER/COUNT"),
        (["--workers", "0"], "Invalid value for '--workers'"),
    ],
)
def test_a_choice_that_does_not_fit_is_a_usage_error(words: list[str], message: str, empty: Path, cli: Cli) -> None:
    done = cli("generate", "--out", "d.h5", *SMALL, *words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not any(empty.iterdir())


def test_an_overlap_that_does_not_occur_is_refused_before_anything_is_written(empty: Path, cli: Cli) -> None:
    done = cli("generate", "--out", "d.h5", *SMALL, "--overlap", "0.95:")
    assert done.exit_code == 1
    assert "none of 2,048 samples of 2 digits have such an overlap" in done.error
    assert not any(empty.iterdir())


def test_classes_follow_the_folder(empty: Path, cli: Cli) -> None:
    names = tuple("KLMNOPQRSTUV")
    folder = write_folder(empty / "letters", make_source(digit_px=28, class_names=names))
    (folder / "mapping.txt").write_text("".join(f"{number} {ord(name)}\n" for number, name in enumerate(names)))
    assert cli("generate", "--out", "d.h5", *SMALL, "--digits", folder).exit_code == 0
    shown = cli("inspect", "d.h5").stdout
    assert re.search(r"class_names +K L M N O P Q R S T U V *\n", shown)
    trained = cli("train", "--data", "d.h5", "--size", "tiny", "--cpu", "--images", "64", "--batch-size", "32")
    assert trained.exit_code == 0, trained.stderr


def test_shards_are_made_in_any_order_kept_and_merged(empty: Path, cli: Cli) -> None:
    assert cli("generate", "--out", "whole.h5", *SMALL).exit_code == 0
    for number in (3, 1, 2):
        done = cli("generate", "--out", f"p{number}.h5", *SMALL, "--shard", f"{number}/3")
        assert f"samples of shard {number}/3" in done.stdout
        assert "`overlaycaps merge" in done.stderr
    before = read_tree(empty)
    again = cli("generate", "--out", "p2.h5", *SMALL, "--shard", "2/3")
    assert again.exit_code == 0
    assert "p2.h5: is there already: " in again.stdout
    other = cli("generate", "--out", "p2.h5", *SMALL, "--shard", "2/3", "--seed", "1")
    assert other.exit_code == 1
    assert "p2.h5 exists and is another dataset, or another shard than 2/3; pass --force" in other.error
    assert read_tree(empty) == before

    merged = cli("merge", "p3.h5", "p1.h5", "p2.h5", "--out", "m.h5")
    assert (merged.exit_code, merged.stdout[:41]) == (0, "m.h5: 2,100 training, 30 validation and 2")
    assert "m.h5 refers to its 3 parts: keep them where they are" in merged.stderr
    assert cli("merge", "p3.h5", "p1.h5", "p2.h5", "--out", "c.h5", "--copy").exit_code == 0
    assert Path("c.h5").read_bytes() == Path("whole.h5").read_bytes()
    for words in (["p1.h5", "p2.h5", "--out", "n.h5"], ["p1.h5", "p2.h5", "p3.h5", "--out", "m.h5"]):
        refused = cli("merge", *words)
        assert refused.exit_code == 1
        assert re.search(r"of 3 shards these are missing: 3;|m\.h5 exists; pass --force", refused.error)
    trained = cli("train", "--data", "p1.h5", "--size", "tiny", "--cpu")
    assert "p1.h5: shard 1/3 of a dataset, not the whole" in trained.error
    assert cli("train", "--data", "m.h5", "--size", "tiny", "--cpu", "--images", "64", "--fresh").exit_code == 0


def test_a_job_of_one_shard_is_a_job(empty: Path, cli: Cli) -> None:
    assert cli("generate", "--out", "whole.h5", *SMALL).exit_code == 0
    for said in ("p.h5: 2,100 training", "p.h5: is there already: 2,100 training"):
        done = cli("generate", "--out", "p.h5", *SMALL, "--shard", "1/1")
        assert done.exit_code == 0, done.stderr
        assert done.stdout.startswith(said)
        assert "overlaycaps merge" not in done.stderr
    assert cli("merge", "p.h5", "--out", "m.h5").exit_code == 0
    assert cli("merge", "p.h5", "--out", "c.h5", "--copy").exit_code == 0
    assert Path("c.h5").read_bytes() == Path("p.h5").read_bytes() == Path("whole.h5").read_bytes()
    with open_dataset("m.h5") as file:
        assert [part.name for part in file.parts] == ["p.h5"]
        file.read_split("train")
    refused = cli("merge", "m.h5", "--out", "n.h5")
    assert "m.h5: a whole dataset, not a part of one" in refused.error


def test_inspect_shows_what_is_in_a_file(desk: Path, cli: Cli) -> None:
    done = cli("inspect", "data.h5")
    assert done.exit_code == 0
    for expected in (
        r"protocol +diverse *\n",
        r"count_weights +0\.166667 0\.833333 *\n",
        r"content digest +[0-9a-f]{64}",
        r"split +samples +source digits +1 digit +2 digits +mean overlap",
        r"train +96 +220 +\d+ \(\d+\.\d\d %\)",
        r"Samples that show each class",
        r"Overlays by overlap",
        r"0\.9 to 1\.0",
        r"No fault: ",
    ):
        assert re.search(expected, done.stdout), (expected, done.stdout)
    content = json.loads(cli("inspect", "data.h5", "--json").stdout)
    assert (content["schema"], content["schema_version"], content["faults"]) == ("overlaycaps.inspection", 1, [])
    assert sum(content["splits"]["train"]["by_count"]) == content["splits"]["train"]["num_samples"] == 96


def test_inspect_lists_every_fault_and_exits_with_1(desk: Path, cli: Cli) -> None:
    with h5py.File("data.h5", "r+") as file:
        del file["test/digits"]
        file["train/images"][4, 0, 0] ^= 1
    done = cli("inspect", "data.h5", "--preview", "sheet.png")
    assert done.exit_code == 1
    assert "fault 1 of 3: dataset test/digits is missing; generate the file again\n" in done.stdout
    assert "train samples 0 to 95 do not match their stored digest" in done.stdout
    assert done.error == "error: data.h5: 3 faults, listed above; sheet.png was not drawn."
    assert not Path("sheet.png").exists()
    as_json = cli("inspect", "data.h5", "--json")
    assert as_json.exit_code == 1
    assert len(json.loads(as_json.stdout)["faults"]) == 3
    Path("web.h5").write_text("<html></html>")
    assert "fault 1 of 1: not an HDF5 file" in cli("inspect", "web.h5").stdout


def test_a_preview_is_drawn_and_not_over_another_file(desk: Path, cli: Cli) -> None:
    assert cli("inspect", "data.h5", "--preview", "sheet.png").exit_code == 0
    with Image.open("sheet.png") as sheet:
        assert min(sheet.size) > 300
    refused = cli("inspect", "data.h5", "--preview", "sheet.png")
    assert "sheet.png exists; pass --force" in refused.error
    assert "choose a name that ends in .png" in cli("inspect", "data.h5", "--preview", "sheet.jpg").error
    assert cli("inspect", "data.h5", "--preview", "sheet.png", "--force").exit_code == 0


def test_export_writes_what_other_programs_read(desk: Path, cli: Cli) -> None:
    done = cli("export", "data.h5", "--to", "npz")
    assert done.stdout == "data.npz: 184 samples of data.h5\n"
    with np.load("data.npz") as arrays, open_dataset("data.h5") as file:
        assert np.array_equal(arrays["train_images"], file.read_split("train").images)
    assert cli("export", "data.h5", "--to", "png", "--split", "test", "--out", "pictures").exit_code == 0
    assert len(list(Path("pictures").rglob("*.png"))) == 48
    assert cli("export", "data.h5", "--to", "npz").exit_code == 1
    unknown = cli("export", "data.h5", "--to", "npy")
    assert (unknown.exit_code, "did you mean npz?" in unknown.error) == (2, True)
    assert cli("export", "data.h5", "--to", "npz", "--split", "dev").exit_code == 2


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, env=make_environment(**more), capture_output=True, text=True, check=False
    )


def test_under_torchrun_each_process_writes_its_own_shard(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "digits", make_source(digit_px=28))
    words = ["generate", "--out", "d.h5", "--digits", str(folder), *SMALL]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "overlaycaps", *words]
    for _ in range(2):  # given again, it finds its parts
        done = subprocess.run(launch, cwd=tmp_path, env=make_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    parts = ["d.part-1-of-2.h5", "d.part-2-of-2.h5"]
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == parts
    assert done.stdout.count("is there already") == 2
    assert run(tmp_path, "merge", *parts, "--out", "d.h5", "--copy").returncode == 0
    assert run(tmp_path, *words[:1], "--out", "whole.h5", *words[3:]).returncode == 0
    assert (tmp_path / "d.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


@pytest.mark.parametrize(("workers", "delay_s"), [("1", 0.0), ("3", 0.3)])
def test_a_killed_generation_leaves_nothing_and_the_next_one_cleans_up(
    workers: str, delay_s: float, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "digits", make_source(digit_px=28))
    words = [*COMMAND, "generate", "--out", "d.h5", "--digits", str(folder), "--workers", workers, "--train"]
    process = subprocess.Popen([*words, "3000000"], cwd=tmp_path, env=make_environment())
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob(".d.h5.*.partial")) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [f".d.h5.{process.pid}.partial", "digits"]
    done = subprocess.run([*words, "100"], cwd=tmp_path, env=make_environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.h5", "digits"]
    assert run(tmp_path, "inspect", "d.h5").returncode == 0


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="this system has no prlimit to make writes fail")
@pytest.mark.parametrize("words", [["merge", "p1.h5", "p2.h5", "--copy"], ["generate", *SMALL]], ids=lambda w: w[0])
def test_a_full_disk_is_told_and_leaves_everything(words: list[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "digits", make_source(digit_px=28))
    for number in "12":
        shard = ("--shard", f"{number}/2", "--digits", str(folder))
        assert run(tmp_path, "generate", "--out", f"p{number}.h5", *SMALL, *shard).returncode == 0
    before = read_tree(tmp_path)
    options = ["--digits", str(folder)] if words[0] == "generate" else []
    done = subprocess.run(
        ["prlimit", "--fsize=1000000", *COMMAND, *words, "--out", "new.h5", *options],
        cwd=tmp_path,
        env=make_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: new.h5 cannot be written: files may not be that large here")
    assert read_tree(tmp_path) == before
