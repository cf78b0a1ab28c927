"""Runs that are stopped, killed or damaged: nothing that was saved is lost, and the end is the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.errors import Interrupted, UserError
from overlaycaps.train.checkpoint import load_checkpoint, load_weights, save_checkpoint
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.loop import train
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import PreparedRun, ResumeRequest, prepare_resumed_run, prepare_run
from overlaycaps.train.session import carry_out
from tests.train.runs import ROOT, Listener, assert_same_end, begin, flip, go_on
from tests.train.test_loop import StopAfter, make_request

# Both schedules and optimisers, clipping and early stopping have state of their own.
KINDS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "sgd": {"optimizer": "sgd", "lr_schedule": "cosine", "clip_norm": 0.5, "fresh": True},
    "parts": {"accumulate": 3, "model": "cnn", "warm_up": 0.0},
    "patience": {"patience": 2, "lr": 1e-9, "epochs": 6},
    "batch-norm": {"model": "caps-resnet", "epochs": None, "images": 60},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_stopped_again_and_again_ends_the_same(kind: str, tiny_data: Path, tmp_path: Path) -> None:
    request = replace(make_request(tiny_data, tmp_path / "whole"), **KINDS[kind])
    begin(request)
    stopper = StopAfter(2)
    with pytest.raises(Interrupted):
        begin(replace(request, runs_dir=tmp_path / "parts"), stopper, stopper.stop)
    for _ in range(40):
        stopper = StopAfter(3)
        try:
            run = prepare_resumed_run(ResumeRequest(tmp_path / "parts/run", cpu=True))
            carry_out(run, stopper, stopper.stop, "resume")
        except Interrupted:
            continue
        break
    assert_same_end(tmp_path / "whole/run", tmp_path / "parts/run")


def test_patience_ends_a_run_that_gets_no_better(tiny_data: Path, tmp_path: Path) -> None:
    listener = Listener()
    result = begin(make_request(tiny_data, tmp_path, patience=2, lr=1e-9, epochs=9), listener)
    # The first is the best there is; the others are no better.
    assert [evaluation.num_left for evaluation in listener.evaluations] == [2, 1, 0]
    assert result["training"]["epochs_done"] == 3
    assert result["training"]["images_seen"] == 3 * 96
    assert result["training"]["images_planned"] == 9 * 96


SCRIPT = """
import sys, torch
from pathlib import Path
from overlaycaps.train.interrupt import catch_stop_signals
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run
from overlaycaps.train.runtime import select_runtime
from overlaycaps.train.session import carry_out
from overlaycaps.train.step import TrainStep
data, runs = Path(sys.argv[1]), Path(sys.argv[2])
minutes = float(sys.argv[3])
if (runs / "run").exists():
    run, begin = prepare_resumed_run(ResumeRequest(runs / "run", cpu=True, checkpoint_minutes=minutes)), "resume"
else:
    request = TrainRequest(model="caps", size="tiny", data_path=data, runs_dir=runs, cpu=True, epochs=30, batch_size=20,
                           name="run", threads=1, fresh=True, checkpoint_minutes=minutes)
    run, begin = prepare_run(request), "new"
print("ready", flush=True)
with catch_stop_signals() as stop:
    carry_out(run, SilentObserver(), stop, begin)
"""


def start_script(data: Path, runs: Path, minutes: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", SCRIPT, str(data), str(runs), str(minutes)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole_script(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the script that nobody killed."""
    runs = tmp_path_factory.mktemp("whole")
    with start_script(tiny_data, runs, 60.0) as whole:
        assert whole.wait(timeout=120) == 0, whole.communicate()
    return runs / "run"


# 0: after every step; 60: at the end of epochs only.
@pytest.mark.parametrize("minutes", [0.0, 60.0])
def test_a_run_that_is_killed_again_and_again_ends_the_same(
    minutes: float, whole_script: Path, tiny_data: Path, tmp_path: Path
) -> None:
    moments = random.Random(int(minutes))
    deaths = 0
    while not (tmp_path / "parts/run/result.json").exists():
        assert deaths < 20
        with start_script(tiny_data, tmp_path / "parts", minutes) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()
            try:
                process.wait(timeout=moments.uniform(0.02, 0.6) if deaths < 2 else 120)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                deaths += 1
    assert deaths == 2, "it was really killed"
    assert_same_end(whole_script, tmp_path / "parts/run")
    assert not list((tmp_path / "parts/run").glob("train.lock")), "what a dead process left is gone"


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": flip,
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_falls_back_to_the_one_before_and_says_so(damage: str, stopped: Path) -> None:
    DAMAGES[damage](stopped / "last.pt")
    listener = Listener()
    go_on(stopped, listener)
    (warning,) = listener.warnings
    assert str(stopped / "last.pt") in warning
    assert warning.endswith("going on from the state before it, previous.pt.")
    assert listener.progress[0].images_seen == 96 + 20, "it goes on from the end of the first epoch"
    assert_same_end(stopped.parents[1] / "whole/run", stopped)


@pytest.mark.parametrize("damage", ["empty", "torn", "flipped"])
def test_two_damaged_states_are_named_and_nothing_is_lost(damage: str, stopped: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        DAMAGES[damage](stopped / name)
    before = {name: (stopped / name).read_bytes() for name in ("last.pt", "previous.pt", "best.pt", "metrics.jsonl")}
    with pytest.raises(UserError, match=r"last\.pt is damaged .*; train the run again with --force"):
        go_on(stopped)
    assert {name: (stopped / name).read_bytes() for name in before} == before


def test_best_weights_come_back_with_the_state(stopped: Path) -> None:
    # A process that was killed may have written best.pt after the state that is gone on from; or it is damaged.
    (stopped / "best.pt").write_bytes(b"of an evaluation that nobody remembers")
    go_on(stopped)
    assert_same_end(stopped.parents[1] / "whole/run", stopped)
    whole = load_checkpoint(stopped.parents[1] / "whole/run/best.pt")
    ours = load_checkpoint(stopped / "best.pt")
    assert ours["images_seen"] == whole["images_seen"]
    assert all(torch.equal(tensor, whole["model"][name]) for name, tensor in ours["model"].items())


def test_a_state_of_an_older_program_says_what_to_do(stopped: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        torch.save({"schema": "overlaycaps.checkpoint", "schema_version": 1}, stopped / name)
    with pytest.raises(UserError, match=r"has version 1; this program reads 2\. Train the run again with --force"):
        go_on(stopped)


def test_a_run_that_saved_nothing_begins_anew(tiny_data: Path, tmp_path: Path) -> None:
    run = prepare_run(make_request(tiny_data, tmp_path / "parts"))
    run.folder.create(run.describe(), force=False)
    resumed = prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))
    assert resumed.warnings == [f"{run.folder.path} has no saved state yet; it begins anew."]
    carry_out(resumed, SilentObserver(), StopFlag(), "resume")
    begin(make_request(tiny_data, tmp_path / "whole"))
    assert_same_end(tmp_path / "whole/run", run.folder.path)


def test_a_resumed_run_keeps_to_its_precision_threads_and_parts(tiny_data: Path, tmp_path: Path) -> None:
    request = make_request(tiny_data, tmp_path, precision="bf16", threads=1, accumulate=2)
    run = prepare_run(request)
    run.folder.create(run.describe(), force=False)
    content = json.loads(run.folder.config_file.read_text())
    content["training"]["precision"] = "auto"  # whatever this machine would make of it
    run.folder.config_file.write_text(json.dumps(content))
    resumed = prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))
    assert resumed.execution == run.execution
    assert (resumed.runtime.precision, resumed.runtime.num_threads) == ("bf16", 1)
    asked = prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True, threads=2, accumulate=1))
    assert (asked.execution.threads, asked.execution.accumulate) == (2, 1)


def test_what_a_killed_process_left_half_written_is_removed(stopped: Path) -> None:
    (stopped / ".last.pt.12345.partial").write_bytes(b"half of a state")
    (stopped / ".mine.partial").write_bytes(b"not ours")
    go_on(stopped)
    assert [path.name for path in stopped.iterdir() if path.name.startswith(".")] == [".mine.partial"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_a_state_with_prefixes_of_wrappers_goes_on(prefix: str, stopped: Path) -> None:
    state = load_checkpoint(stopped / "last.pt")
    assert not any(name.startswith(("module.", "_orig_mod.")) for name in state["model"]), "none is saved"
    state["model"] = {prefix + name: value for name, value in state["model"].items()}
    save_checkpoint(stopped / "last.pt", state)
    go_on(stopped)
    assert_same_end(stopped.parents[1] / "whole/run", stopped)


def test_names_that_look_like_wrappers_are_kept_where_they_are_the_models_own() -> None:
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(1, 1)})
    weights = {name: torch.full_like(value, 3.0) for name, value in model.state_dict().items()}
    load_weights(model, weights)
    assert all((value == 3).all() for value in model.state_dict().values())


def test_a_stop_while_a_split_is_scored_saves_what_was_trained(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFlag()

    class StopWhileScoring(SilentObserver):
        def on_scoring(self, scoring: Any) -> None:
            stop.requested = True

    run: PreparedRun = prepare_run(make_request(tiny_data, tmp_path / "parts"))
    with pytest.raises(Interrupted, match="stopped after 96 of 192 images; the state is saved"):
        carry_out(run, StopWhileScoring(), stop, "new")
    assert not run.folder.metrics_file.exists(), "the evaluation is still to do"
    resumed = prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))
    train(resumed, SilentObserver(), StopFlag())
    begin(make_request(tiny_data, tmp_path / "whole"))
    assert_same_end(tmp_path / "whole/run", run.folder.path)


def test_unused_folder_is_removed_where_a_run_cannot_begin(tiny_data: Path, tmp_path: Path) -> None:
    run = prepare_run(make_request(tiny_data, tmp_path / "runs"))
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlaycaps.train.run_folder.write_text_atomically", _refuse)
        with pytest.raises(UserError, match="no"):
            carry_out(run, SilentObserver(), StopFlag(), "new")
    assert not run.folder.path.exists()


def _refuse(*_arguments: Any) -> None:
    raise UserError("no")


def test_a_damaged_state_does_not_replace_the_sound_one(stopped: Path) -> None:
    flip(stopped / "last.pt")
    stopper = StopAfter(1)
    run = prepare_resumed_run(ResumeRequest(stopped, cpu=True))
    with pytest.raises(Interrupted):
        carry_out(run, stopper, stopper.stop, "resume")
    steps = [load_checkpoint(stopped / name)["position"]["step"] for name in ("previous.pt", "last.pt")]
    assert steps == [5, 6]


@pytest.mark.parametrize(
    "changes",
    [
        {"step": 10**6},
        {"step": "7"},
        {"epochs_done": 3.0},
        {"loss_images": -1},
        {"train_time_s": float("nan")},
        {"best_scores": [1]},
        {"no_such": 1},
    ],
    ids=str,
)
def test_a_position_that_makes_no_sense_is_refused(changes: dict[str, Any], stopped: Path) -> None:
    state = load_checkpoint(stopped / "last.pt")
    state["position"] |= changes
    save_checkpoint(stopped / "last.pt", state)
    with pytest.raises(UserError, match=r"last\.pt is not a state of this run"):
        go_on(stopped)


def test_a_path_that_no_system_takes_is_refused(stopped: Path) -> None:
    content = json.loads((stopped / "config.json").read_text())
    content["data"]["path"] = "a\0b"
    (stopped / "config.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"config\.json is damaged: the data's path"):
        prepare_resumed_run(ResumeRequest(stopped))


def test_a_folder_with_half_a_configuration_is_free(tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.config.json.99.partial").write_text("{")
    begin(make_request(tiny_data, tmp_path, epochs=1))
    assert not (tmp_path / "run/.config.json.99.partial").exists()


def test_what_auto_came_to_is_the_same_run(tiny_data: Path, tmp_path: Path) -> None:
    run = prepare_run(make_request(tiny_data, tmp_path, precision="auto"))
    run.folder.create(run.describe(), force=False)
    same, other = run.execution.precision, {"bf16": "fp32", "fp32": "bf16"}[run.execution.precision]
    assert prepare_run(make_request(tiny_data, tmp_path, precision=same)).is_stored()
    assert not prepare_run(make_request(tiny_data, tmp_path, precision=other)).is_stored()


def test_a_run_is_called_by_its_folder_also_from_inside(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stopped)
    assert go_on(Path())["run"] == "run"
