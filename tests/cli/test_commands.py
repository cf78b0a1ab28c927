"""The main commands end to end: what they leave, what they print where, what they never overwrite."""

from __future__ import annotations

import json
import socket
from functools import partial
from pathlib import Path

import pytest
import torch

import data_gen.sources
import data_gen.spec
from overlaycaps.kernels import backends
from overlaycaps.models import MATCHED_MODELS
from overlaycaps.train import grid
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.runtime import select_runtime
from tests.cli.conftest import Cli, read_tree
from tests.data_gen.sources import make_source

PRECISION = select_runtime(None, True, "auto")[0].precision
FEW = ("--train", "60", "--valid", "20", "--test", "30")
RUN_FILES = ["best.pt", "config.json", "last.pt", "metrics.jsonl", "previous.pt", "result.json"]


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def small_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the defaults of ``generate`` small, for commands that generate on the way."""
    few = partial(data_gen.spec.make_spec, num_train=96, num_valid=20, num_test=30)
    monkeypatch.setattr(data_gen.spec, "make_spec", lambda protocol, **_choices: few(protocol))
    monkeypatch.setattr(data_gen.sources, "load_bundled", lambda: make_source(digit_px=28))


@pytest.mark.usefixtures("no_cuda")
def test_the_four_main_commands_without_any_network(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.chdir(tmp_path)
    made = cli("generate", "--out", "data.h5", *FEW)
    assert made.exit_code == 0
    assert made.stdout.startswith("data.h5: 60 training, 20 validation and 30 test samples (diverse, 36x36, ")

    trained = cli("train", "--model", "caps", "--gpu", "0", "--size", "tiny")
    assert trained.exit_code == 0
    assert trained.stderr.count("warning: ") == 1
    assert trained.stderr.startswith("warning: --gpu 0: no CUDA device is available")
    assert trained.stdout.startswith("caps-tiny-240-seed0: test exact match ")
    assert len(trained.stdout.splitlines()) == 1
    assert sorted(file.name for file in Path("runs/caps-tiny-240-seed0").iterdir()) == RUN_FILES

    assert cli("train", "--model", "cnn", "--size", "tiny").exit_code == 0
    compared = cli("compare")
    assert compared.exit_code == 0
    assert "caps-tiny-240-seed0" in compared.stdout
    assert compared.stderr == "written: report.md, report.json\n"

    as_json = cli("compare", "--json")
    assert as_json.exit_code == 0
    assert as_json.stderr == ""
    runs = json.loads(as_json.stdout)["tables"][0]["rows"]
    assert {row["model"] for row in runs} == {"caps", "cnn"}
    assert json.loads(Path("report.json").read_text()) == json.loads(as_json.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.h5", "report.json", "report.md", "runs"]


@pytest.mark.usefixtures("desk")
def test_redirected_output_has_no_control_characters(cli: Cli) -> None:
    outcome = cli("train", "--size", "tiny", "--images", "200", "--cpu", "--runs", "a[", "--name", "x]b[red]")
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith("x]b[red]: test exact match")
    assert "run folder a[/x]b[red]\n" in outcome.stderr
    assert "x]b[red]: epoch 1/3  96 images" in outcome.stderr
    report = cli("compare", "--runs", "a[")
    assert "x]b[red]" in report.stdout
    for stream in (outcome.stdout, outcome.stderr, report.stdout, report.stderr):
        assert "\x1b" not in stream
        assert "\r" not in stream


@pytest.mark.usefixtures("desk")
def test_a_gpu_that_does_not_exist_among_others_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    outcome = cli("train", "--size", "tiny", "--gpu", "3")
    assert outcome.exit_code == 2
    assert "--gpu 3: this machine has GPU 0 to 1" in outcome.error
    assert not Path("runs").exists()


def test_a_data_file_is_replaced_only_by_force(desk: Path, cli: Cli) -> None:
    before = read_tree(desk)
    assert cli("generate", *FEW).exit_code == 1
    assert read_tree(desk) == before
    assert cli("generate", *FEW, "--force").exit_code == 0
    assert read_tree(desk) != before
    assert list(read_tree(desk)) == ["data.h5"]


@pytest.mark.usefixtures("desk")
def test_a_finished_run_is_replaced_only_by_force(cli: Cli) -> None:
    words = ("train", "--size", "tiny", "--images", "150", "--cpu", "--name", "run")
    assert cli(*words).exit_code == 0
    Path("runs/run/notes.txt").write_text("mine")
    before = read_tree(Path("runs"))
    assert "--force" in cli(*words, "--seed", "1").error
    assert read_tree(Path("runs")) == before
    assert cli(*words, "--seed", "1", "--force").exit_code == 0
    after = read_tree(Path("runs"))
    assert after["run/best.pt"] != before["run/best.pt"]
    assert after["run/notes.txt"] == b"mine"


def test_an_empty_folder_may_become_a_run(desk: Path, cli: Cli) -> None:
    (desk / "runs/run").mkdir(parents=True)
    assert cli("train", "--size", "tiny", "--images", "150", "--cpu", "--name", "run").exit_code == 0
    assert sorted(file.name for file in Path("runs/run").iterdir()) == RUN_FILES


@pytest.mark.usefixtures("desk")
def test_the_next_step_is_named_as_it_has_to_be_typed(cli: Cli) -> None:
    words = ("train", "--size", "tiny", "--images", "150", "--cpu")
    assert cli(*words).stderr.endswith("compare it with `overlaycaps compare`\n")
    assert cli(*words, "--runs", "my runs").stderr.endswith("compare it with `overlaycaps compare --runs 'my runs'`\n")


def test_a_report_of_the_users_own_is_replaced_only_by_force(
    trained_runs: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.md").write_text("my own words")
    words = ("compare", "--runs", trained_runs)
    assert "report.md is not a report of overlaycaps" in cli(*words).error
    assert read_tree(tmp_path) == {"report.md": b"my own words"}
    assert cli(*words, "--json").exit_code == 0
    assert read_tree(tmp_path) == {"report.md": b"my own words"}
    assert cli(*words, "--force").exit_code == 0
    first = read_tree(tmp_path)
    assert list(first) == ["report.json", "report.md"]
    assert cli(*words).exit_code == 0, "our own report is refreshed"
    assert read_tree(tmp_path) == first


@pytest.mark.usefixtures("small_choices")
def test_reproduce_does_everything_once(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("reproduce", "--images", "150", "--size", "tiny", "--cpu")
    first = cli(*words)
    assert first.exit_code == 0
    assert first.stdout.startswith("data.h5: 96 training")
    folders = [f"{model}-tiny-150-seed0" for model in MATCHED_MODELS]
    for model, folder in zip(MATCHED_MODELS, folders, strict=True):
        assert f"{model} seed 0: finished, {folder}: test exact match" in first.stdout
        assert sorted(file.name for file in (tmp_path / "runs" / folder).iterdir()) == RUN_FILES
    before = read_tree(tmp_path)
    assert sorted(before)[:3] == ["data.h5", "report.json", "report.md"]

    second = cli(*words)
    assert second.exit_code == 0
    expected = [
        "data.h5 exists and is used as it is",
        *(
            f"[{number}/4] {model} seed 0: skipped: runs/{folder} is finished"
            for number, (model, folder) in enumerate(zip(MATCHED_MODELS, folders, strict=True), start=1)
        ),
        "written: report.md, report.json",
    ]
    assert second.stderr.splitlines() == expected
    comparisons = [run.stdout[run.stdout.index("Runs\n") :] for run in (first, second)]
    assert comparisons[0] == comparisons[1]
    assert read_tree(tmp_path) == before


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the cells of a grid have no processes of their own, each of which takes seconds to start."""
    monkeypatch.setattr(grid, "run_cell_apart", grid.run_cell)


@pytest.mark.usefixtures("desk", "in_one_process")
def test_reproduce_leaves_another_run_alone(cli: Cli) -> None:
    name = ("--name", "cnn-tiny-150-seed0")
    words = ("train", "--model", "cnn", "--size", "tiny", "--images", "150", "--cpu", "--lr", "0.1")
    assert cli(*words, *name).exit_code == 0
    before = read_tree(Path("runs/cnn-tiny-150-seed0"))
    outcome = cli("reproduce", "--images", "150", "--size", "tiny", "--cpu")
    assert outcome.exit_code == 1
    assert "cnn seed 0: failed, runs/cnn-tiny-150-seed0 holds another run" in outcome.stdout
    assert "1 of 4 runs failed" in outcome.error
    assert len(list(Path("runs").glob("*/result.json"))) == 4, "the others are done"
    assert read_tree(Path("runs/cnn-tiny-150-seed0")) == before


@pytest.mark.usefixtures("desk", "no_cuda", "in_one_process")
def test_reproduce_warns_once(cli: Cli) -> None:
    outcome = cli("reproduce", "--images", "150", "--size", "tiny", "--gpu", "0")
    assert outcome.exit_code == 0
    assert outcome.stderr.count("warning: ") == 1


def test_a_run_goes_on_with_data_that_were_moved(desk: Path, cli: Cli) -> None:
    words = ("train", "--size", "tiny", "--images", "150", "--cpu", "--name", "run")
    assert cli(*words).exit_code == 0
    expected = json.loads(Path("runs/run/result.json").read_text())
    Path("runs/run/result.json").unlink()
    (desk / "data.h5").rename(desk / "elsewhere.h5")
    assert "data.h5: no such file" in cli("train", "--resume", "runs/run").error
    assert cli("train", "--resume", "runs/run", "--data", "elsewhere.h5", "--cpu").exit_code == 0
    assert json.loads(Path("runs/run/result.json").read_text())["test"] == expected["test"]


def test_a_resumed_run_of_code_needs_its_name_again(desk: Path, cli: Cli) -> None:
    place = "overlaycaps.models.cnn:build_flat"
    words = ("train", "--model", place, "--size", "tiny", "--images", "150", "--cpu", "--name", "run")
    assert cli(*words).exit_code == 0
    (desk / "runs/run/result.json").unlink()
    assert f"say so with `--model {place}`" in cli("train", "--resume", "runs/run").error
    assert cli("train", "--resume", "runs/run", "--model", place).exit_code == 0


@pytest.mark.parametrize("command", ["models", "routings"])
def test_listings_can_be_read_by_programs(command: str, cli: Cli) -> None:
    shown, as_json = cli(command, "--size", "tiny"), cli(command, "--size", "tiny", "--json")
    assert shown.exit_code == as_json.exit_code == 0
    rows = json.loads(as_json.stdout)["tables"][0]["rows"]
    assert len(rows) > 3
    for row in rows:
        assert str(next(iter(row.values()))) in shown.stdout


@pytest.mark.usefixtures("desk")
def test_the_options_reach_the_run(cli: Cli) -> None:
    options = "--images 150 --batch-size 30 --lr 0.01 --seed 7 --precision bf16 --iterations 3 --schedule sequential"
    outcome = cli("train", "--model", "caps-matrix", "--size", "tiny", "--cpu", *options.split())
    assert outcome.exit_code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name == "caps-matrix-it3-sequential-tiny-150-lr0.01-batch30-seed7"
    config = json.loads((folder / "config.json").read_text())
    training, model = config["training"], config["model"]
    assert (training["num_images"], training["batch_size"], training["lr"]) == (150, 30, 0.01)
    assert (training["seed"], training["precision"]) == (7, "bf16")
    assert (model["iterations"], model["schedule"], model["pose"]) == (3, "sequential", "matrix")
    assert load_checkpoint(folder / "best.pt")["images_seen"] in (96, 150)
    compared = json.loads(cli("compare", "--json").stdout)
    assert compared["tables"][0]["rows"][0]["device"] == {"device": "cpu", "precision": "bf16"}


@pytest.mark.usefixtures("no_cuda")
def test_threads_and_compilation_reach_the_run(
    tiny_data: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)

    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", fail)
    words = ("train", "--data", str(tiny_data), "--size", "tiny", "--images", "64", "--batch-size", "32")
    done = cli(*words, "--threads", "3", "--compile")
    assert done.exit_code == 0
    assert chosen == [3]
    assert "warning: --compile: torch.compile failed, so the run goes on without it: no compiler here" in done.stderr
    (result_file,) = tmp_path.glob("runs/*/result.json")
    assert result_file.parent.name == "caps-tiny-64-batch32-compiled-seed0"
    result = json.loads(result_file.read_text())
    assert result["environment"]["threads"] == 3
    assert result["training"]["compile"] is False
    assert json.loads((result_file.parent / "config.json").read_text())["training"]["compile"] is True


@pytest.mark.usefixtures("no_cuda")
def test_a_missing_kernel_is_told_once_and_only_to_those_who_route(
    tiny_data: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backends, "_try_native", lambda: "no C compiler is installed")
    backends._warn_once.cache_clear()
    words = ("train", "--data", str(tiny_data), "--size", "tiny", "--images", "96", "--batch-size", "32")
    line = "warning: routing runs in plain torch, several times slower: no C compiler is installed."
    assert line not in cli(*words, "--model", "cnn").stderr
    routed = cli(*words, "--model", "caps")
    assert routed.exit_code == 0
    assert routed.stderr.splitlines().count(line) == 1
    # In one process once is enough.
    assert line not in cli(*words, "--model", "caps-matrix").stderr
