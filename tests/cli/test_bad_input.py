"""What a user may get wrong: one line that names it and the remedy, the right exit code, and nothing is touched."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import h5py
import pytest

from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from tests.cli.conftest import Cli, read_tree
from tests.data_gen.sources import make_source

OK, FAILED, USAGE = 0, 1, 2
LONG = "x" * 300


@pytest.fixture(scope="module")
def workshop(small_data: Path, trained_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of everything that a command may be given by mistake; no test may change it."""
    folder = tmp_path_factory.mktemp("workshop")
    shutil.copy(small_data, folder / "data.h5")
    content = small_data.read_bytes()
    (folder / "empty.h5").touch()
    (folder / "text.h5").write_text("digits, honestly\n")
    (folder / "picture.h5").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (folder / "cut.h5").write_bytes(content[: len(content) // 2])
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = [1, 2]
    for name, lost in (("no-labels.h5", "train/labels"), ("no-test.h5", "test"), ("no-digits.h5", "digits/train")):
        shutil.copy(small_data, folder / name)
        with h5py.File(folder / name, "a") as file:
            del file[lost]
    spec = make_spec(num_train=20, num_valid=10, num_test=10, canvas_px=12, max_shift_px=3, digit_px=6)
    write_dataset(folder / "12px.h5", spec, make_source())
    spec = make_spec(num_train=20, num_valid=10, num_test=10, canvas_px=64)
    write_dataset(folder / "64px.h5", spec, make_source(digit_px=28))
    (folder / "hollow").mkdir()

    shutil.copytree(trained_runs, folder / "runs")
    shutil.copytree(folder / "runs/baseline", folder / "unfinished/baseline")
    (folder / "unfinished/baseline/result.json").unlink()
    (folder / "unfinished/baseline/previous.pt").unlink()
    shutil.copytree(folder / "unfinished/baseline", folder / "odd/bad-state")
    (folder / "odd/bad-state/last.pt").write_bytes(b"junk")
    shutil.copytree(folder / "unfinished/baseline", folder / "odd/other-state")
    shutil.copy(folder / "runs/capsules/last.pt", folder / "odd/other-state/last.pt")
    shutil.copytree(folder / "unfinished/baseline", folder / "odd/bad-config")
    (folder / "odd/bad-config/config.json").write_text("{")
    (folder / "odd/thesis").mkdir()
    (folder / "odd/thesis/chapter.tex").write_text("words")
    (folder / "odd/other").mkdir()
    (folder / "odd/other/config.json").write_text('{"schema": "something else"}')
    shutil.copytree(folder / "runs", folder / "damaged-json")
    (folder / "damaged-json/baseline/result.json").write_text("{")
    shutil.copytree(folder / "runs", folder / "damaged-value")
    file_ = folder / "damaged-value/baseline/result.json"
    file_.write_text(file_.read_text().replace('"images_seen": 150', '"images_seen": -1'))
    (folder / "mine").mkdir()
    (folder / "mine/report.md").write_text("# my own words\n")
    (folder / "folders/report.md").mkdir(parents=True)
    return folder


GENERATE = [
    ("generate", FAILED, ["data.h5 exists", "--force"]),
    ("generate --out hollow", FAILED, ["hollow is a folder", "hollow/data.h5"]),
    ("generate --out nowhere/o.h5", FAILED, ["nowhere/o.h5", "does not exist; create it"]),
    ("generate --out text.h5/o.h5", FAILED, ["text.h5/o.h5 cannot be written"]),
    ("generate --out ''", FAILED, ["is a folder; give a file name"]),
    ("generate --out /dev/null", FAILED, ["/dev/null is not a regular file"]),
    (f"generate --out {LONG}", FAILED, ["name too long"]),
    ("generate --out o.h5 --digits hollow", FAILED, ["hollow: no train-images-idx3-ubyte"]),
    ("generate --out o.h5 --digits nowhere", FAILED, ["nowhere: no such folder"]),
    ("generate --out o.h5 --digits text.h5", FAILED, ["text.h5: no such folder"]),
    ("generate --out o.h5 --protocol divers", USAGE, ["--protocol", "did you mean diverse?"]),
    ("generate --out o.h5 --protocol ''", USAGE, ["--protocol", "diverse, multimnist"]),
    ("generate --out o.h5 --merge clp", USAGE, ["--merge", "did you mean clip?"]),
    ("generate --out o.h5 --merge sum", USAGE, ["--merge", "clip, max, mean"]),
    ("generate --out o.h5 --canvas 30", USAGE, ["--canvas 30", "use --canvas 36 or --max-shift 1"]),
    ("generate --out o.h5 --canvas 12 --max-shift 0", USAGE, ["--canvas 12", "use --canvas 28"]),
    ("generate --out o.h5 --canvas 0", USAGE, ["--canvas 0", "1 to 256"]),
    ("generate --out o.h5 --canvas 1000", USAGE, ["--canvas 1000", "1 to 256"]),
    ("generate --out o.h5 --max-shift -1", USAGE, ["--max-shift -1", "0 to 127"]),
    ("generate --out o.h5 --max-shift 100", USAGE, ["--canvas 36 is too small"]),
    ("generate --out o.h5 --train 0", USAGE, ["--train 0", "use 1 to"]),
    ("generate --out o.h5 --train -5", USAGE, ["--train -5", "use 1 to"]),
    ("generate --out o.h5 --valid 0", USAGE, ["--valid 0", "use 1 to"]),
    ("generate --out o.h5 --test 0", USAGE, ["--test 0", "use 1 to"]),
    (f"generate --out o.h5 --train {10**30}", USAGE, ["--train", "use 1 to"]),
    ("generate --out o.h5 --single-fraction 2", USAGE, ["--single-fraction 2", "0 to 1"]),
    ("generate --out o.h5 --single-fraction -0.1", USAGE, ["--single-fraction -0.1", "0 to 1"]),
    ("generate --out o.h5 --single-fraction nan", USAGE, ["--single-fraction nan", "0 to 1"]),
    ("generate --out o.h5 --single-fraction inf", USAGE, ["--single-fraction inf", "0 to 1"]),
    ("generate --out o.h5 --seed -1", USAGE, ["--seed -1"]),
    (f"generate --out o.h5 --seed {2**70}", USAGE, [f"--seed {2**70}"]),
]

TRAIN_DATA = [
    ("train --data none.h5", FAILED, ["none.h5: no such file", "`overlaycaps generate --out none.h5`"]),
    ("train --data 'my data.h5'", FAILED, ["my data.h5", "`overlaycaps generate --out 'my data.h5'`"]),
    ("train --data hollow", FAILED, ["hollow: not a file", "overlaycaps generate"]),
    ("train --data text.h5", FAILED, ["text.h5: not an HDF5 file", "overlaycaps generate"]),
    ("train --data picture.h5", FAILED, ["picture.h5: not an HDF5 file", "overlaycaps generate"]),
    ("train --data empty.h5", FAILED, ["empty.h5: not an HDF5 file", "overlaycaps generate"]),
    ("train --data cut.h5", FAILED, ["cut.h5: cut off", "generate it again"]),
    ("train --data foreign.h5", FAILED, ["foreign.h5: an HDF5 file, but not one that `overlaycaps generate` wrote"]),
    ("train --data no-labels.h5", FAILED, ["no-labels.h5: dataset train/labels is missing", "generate the file again"]),
    ("train --data no-test.h5", FAILED, ["no-test.h5: group test is missing"]),
    ("train --data no-digits.h5", FAILED, ["no-digits.h5: group digits/train is missing"]),
    ("train --data 12px.h5 --batch-size 20", FAILED, ["12px.h5: images of 12 px are too small", "the smallest is 13"]),
    ("train --model efficient-capsnet --data 64px.h5 --batch-size 20", USAGE, ["efficient-capsnet", "64 px"]),
    (f"train --data {LONG}", FAILED, ["name too long"]),
]

TRAIN_OPTIONS = [
    ("train --model capz", USAGE, ["--model capz", "caps-matrix, cnn", "Did you mean caps?"]),
    ("train --model CNN", USAGE, ["--model CNN", "Did you mean cnn?"]),
    ("train --model ''", USAGE, ["--model ''", "caps, caps-matrix"]),
    ("train --size smal", USAGE, ["--size smal", "Did you mean small?"]),
    ("train --routing atention", USAGE, ["--routing atention", "Did you mean attention?"]),
    ("train --schedule sequental", USAGE, ["--schedule sequental", "Did you mean sequential?"]),
    ("train --precision fp23", USAGE, ["--precision fp23", "auto, fp32, bf16", "Did you mean fp32?"]),
    ("train --precision fp16", USAGE, ["--precision fp16", "auto, fp32, bf16"]),
    ("train --epochs 1 --images 100", USAGE, ["--epochs and --images exclude each other"]),
    ("train --epochs 0", USAGE, ["--epochs 0"]),
    ("train --images 0", USAGE, ["--images 0"]),
    ("train --images -3", USAGE, ["--images -3"]),
    ("train --threads 0", USAGE, ["--threads 0", "at least 1"]),
    ("reproduce --threads -2", USAGE, ["--threads -2", "at least 1"]),
    ("train --batch-size 0", USAGE, ["--batch-size 0"]),
    ("train --batch-size 500 --images 400", USAGE, ["400 training images", "lower --batch-size"]),
    ("train --batch-size 500 --epochs 1", USAGE, ["96 training images", "lower --batch-size"]),
    ("train --lr 0", USAGE, ["--lr 0"]),
    ("train --lr -1", USAGE, ["--lr -1"]),
    ("train --lr nan", USAGE, ["--lr nan"]),
    ("train --lr inf", USAGE, ["--lr inf"]),
    ("train --seed -1", USAGE, ["--seed -1"]),
    (f"train --seed {2**70}", USAGE, [f"--seed {2**70}"]),
    ("train --gpu -1", USAGE, ["--gpu -1"]),
    ("train --gpu 0 --cpu", USAGE, ["--gpu and --cpu exclude each other"]),
    ("train --routing-iterations 0", USAGE, ["--routing-iterations 0", "1 to 10"]),
    ("train --routing-iterations 11", USAGE, ["--routing-iterations 11", "1 to 10"]),
    ("train --model cnn --routing uniform --size tiny", USAGE, ["--routing uniform: cnn has no routing"]),
    ("train --model cnn-pool --iterations 3 --size tiny", USAGE, ["--routing-iterations 3: cnn-pool has no routing"]),
    ("train --model cnn --no-layer-norm --size tiny", USAGE, ["--no-layer-norm: cnn has no routing"]),
    ("train --model efficient-capsnet --routing em", USAGE, ["--routing em", "always uses self-attention"]),
    # What is wrong with an option is told before anything is said of the data.
    ("train --data none.h5 --lr nan", USAGE, ["--lr nan"]),
    ("train --data none.h5 --routing em2", USAGE, ["--routing em2"]),
    ("train --data none.h5 --name a/b", USAGE, ["--name 'a/b'"]),
]

TRAIN_RUNS = [
    ("train --size tiny --name a/b", USAGE, ["--name 'a/b'", "no slashes"]),
    ("train --size tiny --name ''", USAGE, ["--name ''"]),
    ("train --size tiny --name ..", USAGE, ["--name '..'"]),
    ("train --size tiny --name ' '", USAGE, ["--name ' '", "no spaces around"]),
    ("train --size tiny --name 'a\nb'", USAGE, [r"--name 'a\nb'", "no line breaks"]),
    (f"train --size tiny --name {LONG}", FAILED, ["the name is too long"]),
    ("train --size tiny --runs text.h5", FAILED, ["text.h5/", "a file stands where a folder is needed"]),
    ("train --size tiny --runs odd --name thesis", FAILED, ["odd/thesis is not a run folder of overlaycaps"]),
    ("train --size tiny --runs odd --name thesis --force", FAILED, ["odd/thesis is not a run folder of overlaycaps"]),
    ("train --size tiny --runs odd --name other --force", FAILED, ["odd/other is not a run folder of overlaycaps"]),
    (
        "train --size tiny --runs odd --name bad-config --force",
        FAILED,
        ["odd/bad-config/config.json could not be read"],
    ),
    ("train --size tiny --runs . --name text.h5", FAILED, ["text.h5 is not a folder", "another --name or --runs"]),
    ("train --size tiny --name capsules", FAILED, ["runs/capsules holds a finished run", "--force", "--name"]),
    (
        "train --size tiny --runs unfinished --name baseline",
        FAILED,
        ["unfinished run", "`overlaycaps train --resume unfinished/baseline`", "--force"],
    ),
    ("train --resume nowhere", FAILED, ["nowhere does not exist", "unfinished run"]),
    ("train --resume ''", FAILED, ["not a run folder", "give the folder of a run"]),
    ("train --resume hollow", FAILED, ["hollow is not a run folder", "give the folder of a run"]),
    ("train --resume text.h5", FAILED, ["text.h5 is not a folder", "give the folder of a run"]),
    ("train --resume odd/thesis", FAILED, ["odd/thesis is not a run folder", "give the folder of a run"]),
    ("train --resume odd/bad-config", FAILED, ["odd/bad-config/config.json could not be read"]),
    ("train --resume runs/capsules", FAILED, ["runs/capsules is finished already", "`overlaycaps compare`"]),
    (f"train --resume {LONG}", FAILED, ["the name is too long"]),
    ("train --resume unfinished/baseline --lr 0.1", USAGE, ["--lr", "--resume"]),
    ("train --resume unfinished/baseline --model cnn", USAGE, ["--model", "--resume"]),
    ("train --resume unfinished/baseline --epochs 9", USAGE, ["--epochs", "--resume"]),
    ("train --resume unfinished/baseline --data 64px.h5", FAILED, ["64px.h5 is not the data", "--data"]),
    ("train --resume unfinished/baseline --data none.h5", FAILED, ["none.h5: no such file"]),
]

OTHERS = [
    ("compare --runs nowhere", FAILED, ["nowhere is not a folder with runs", "`overlaycaps train --model caps`"]),
    ("compare --runs text.h5", FAILED, ["text.h5 is not a folder with runs"]),
    ("compare --runs hollow", FAILED, ["hollow holds no finished run", "`overlaycaps train --model caps`"]),
    (
        "compare --runs unfinished",
        FAILED,
        ["unfinished holds no finished run", "unfinished ones: baseline", "train --resume unfinished/baseline"],
    ),
    ("compare --runs damaged-json", FAILED, ["damaged-json/baseline/result.json", "move its folder away"]),
    (
        "compare --runs damaged-value",
        FAILED,
        ["damaged-value/baseline/result.json", "images_seen", "train the run again"],
    ),
    (f"compare --runs {LONG}", FAILED, ["the name is too long"]),
    ("compare --out nowhere", FAILED, ["nowhere/report.md", "no such folder; create it"]),
    ("compare --out text.h5", FAILED, ["text.h5/report.md", "a file stands where a folder is needed"]),
    ("compare --out mine", FAILED, ["mine/report.md is not a report of overlaycaps", "--force"]),
    ("compare --out folders", FAILED, ["folders/report.md"]),
    ("compare --out folders --force", FAILED, ["folders/report.md could not be written", "a folder of that name"]),
    ("models --size smal", USAGE, ["--size smal", "Did you mean small?"]),
    ("routings --size smal", USAGE, ["--size smal", "Did you mean small?"]),
    # A slip is told before the data are made, which takes time and leaves a file.
    ("reproduce --data none.h5 --size smal", USAGE, ["--size smal"]),
    ("reproduce --data none.h5 --images 0", USAGE, ["--images 0"]),
    ("reproduce --data none.h5 --images 10", USAGE, ["10 training images"]),
    ("reproduce --data none.h5 --seed -1", USAGE, ["--seed -1"]),
    ("reproduce --data none.h5 --gpu 0 --cpu", USAGE, ["--gpu and --cpu exclude each other"]),
    ("reproduce --data text.h5", FAILED, ["text.h5: not an HDF5 file"]),
    ("reproduce --data nowhere/data.h5", FAILED, ["nowhere/data.h5 cannot be written"]),
]


@pytest.mark.parametrize(("command", "exit_code", "words"), GENERATE + TRAIN_DATA + TRAIN_OPTIONS + TRAIN_RUNS + OTHERS)
def test_bad_input_gets_one_line_and_changes_nothing(
    command: str, exit_code: int, words: list[str], workshop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    before = read_tree(workshop)
    outcome = cli(*shlex.split(command))
    assert outcome.exit_code == exit_code
    assert outcome.stderr.splitlines()[-1] == outcome.error
    for word in words:
        assert word in outcome.error
    assert read_tree(workshop) == before


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("no-such-command", "no-such-command"),
        ("train --no-such-option", "--no-such-option"),
        ("train --seed x", "--seed"),
        ("train --lr", "--lr"),
        ("train --epochs 1.5", "--epochs"),
        ("train extra", "extra"),
        ("generate --train many", "--train"),
        ("generate --seed", "--seed"),
    ],
)
def test_what_cannot_be_parsed_is_a_usage_error(
    command: str, word: str, workshop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    before = read_tree(workshop)
    outcome = cli(*command.split())
    assert outcome.exit_code == USAGE
    assert word in outcome.stderr.splitlines()[-1]
    assert outcome.stderr.splitlines()[-1].startswith("Error: ")
    assert read_tree(workshop) == before


@pytest.mark.parametrize(
    ("name", "word"), [("bad-state", "is damaged or not a checkpoint"), ("other-state", "is not a state of this run")]
)
def test_a_state_that_cannot_be_used_is_named(
    name: str, word: str, workshop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    before = read_tree(workshop)
    outcome = cli("train", "--resume", f"odd/{name}")
    assert outcome.exit_code == FAILED
    assert f"odd/{name}/last.pt {word}" in outcome.error
    assert "--force" in outcome.error
    note = f"odd/{name}/failure.json"
    assert word in json.loads(Path(note).read_text())["message"]
    Path(note).unlink()
    assert read_tree(workshop) == before


def test_a_report_is_shown_even_where_it_cannot_be_written(
    workshop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    outcome = cli("compare", "--out", "mine")
    assert outcome.exit_code == FAILED
    assert "capsules" in outcome.stdout


@pytest.mark.parametrize("option", ["--data", "--resume"])
def test_a_name_with_line_breaks_and_escapes_stays_one_line(
    option: str, workshop: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    outcome = cli("train", option, "a\nb\x1b[31m\udcff")
    assert outcome.exit_code == FAILED
    assert r"a\nb\x1b[31m\udcff" in outcome.error
    assert len(outcome.stderr.splitlines()) == 1
