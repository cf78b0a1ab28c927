"""Whole runs at tiny size: what they leave, that they learn, that stopping and going on changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.data.loading import load_data
from overlaycaps.data.splits import StoredSplit
from overlaycaps.errors import Interrupted, UserError
from overlaycaps.models import build_model
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.evaluate import evaluate
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.loop import train
from overlaycaps.train.observer import Evaluation, Progress, SilentObserver
from overlaycaps.train.plan import PreparedRun, ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run
from tests.data_gen.sources import make_source, make_tiny_spec


def make_request(data: Path, runs: Path, **changes: Any) -> TrainRequest:
    request = TrainRequest(
        model="caps", size="tiny", data_path=data, runs_dir=runs, cpu=True, epochs=2, batch_size=20, name="run"
    )
    return replace(request, **changes)


def start(
    request: TrainRequest, observer: Any = None, stop: StopFlag | None = None
) -> tuple[PreparedRun, dict[str, Any]]:
    run = prepare_run(request)
    run.folder.create(run.describe(), force=False)
    return run, train(run, observer or SilentObserver(), stop or StopFlag())


class StopAfter(SilentObserver):
    """Asks the run to stop after so many steps, as a signal would."""

    def __init__(self, num_steps: int) -> None:
        self.stop = StopFlag()
        self.left = num_steps

    def on_progress(self, progress: Progress) -> None:
        self.left -= 1
        self.stop.requested = self.left <= 0


class Recorder(SilentObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.progress: list[Progress] = []
        self.evaluations: list[Evaluation] = []

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)


def test_a_run_leaves_all_its_files_and_an_honest_result(tiny_data: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    run, result = start(make_request(tiny_data, tmp_path), recorder)
    names = sorted(file.name for file in run.folder.path.iterdir())
    assert names == ["best.pt", "config.json", "last.pt", "metrics.jsonl", "previous.pt", "result.json"]
    assert json.loads(run.folder.result_file.read_text()) == result
    assert result["training"]["images_seen"] == 192
    assert result["training"]["steps"] == len(recorder.progress) == 10
    assert result["training"]["images_per_s"] == pytest.approx(192 / result["training"]["train_time_s"])
    assert result["test"]["num_samples"] == 48
    assert result["validation"]["num_samples"] == 40
    # The scores are those of the best checkpoint, as anyone can compute them again.
    model = build_model("caps", run.model_config)
    model.load_state_dict(load_checkpoint(run.folder.best_file)["model"])
    assert evaluate(model, run.data.test, run.runtime).to_dict() == result["test"]
    assert evaluate(model, run.data.valid, run.runtime).to_dict() == result["validation"]
    best = max(evaluation.exact_match for evaluation in recorder.evaluations)
    exact = result["validation"]["exact_match"]
    assert exact["correct"] / exact["total"] == best


def test_progress_counts_images_and_time(tiny_data: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    start(make_request(tiny_data, tmp_path), recorder)
    assert [p.images_seen for p in recorder.progress] == [20, 40, 60, 80, 96, 116, 136, 156, 176, 192]
    assert [p.epoch for p in recorder.progress] == [1] * 5 + [2] * 5
    for p in recorder.progress:
        assert p.remaining_s == pytest.approx((192 - p.images_seen) / p.images_per_s)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tiny_data: Path, tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> dict[str, torch.Tensor]:
        run, _ = start(make_request(tiny_data, tmp_path, name=name, seed=seed))
        model: dict[str, torch.Tensor] = load_checkpoint(run.folder.last_file)["model"]
        return model

    first, again, other = weights("a", 0), weights("b", 0), weights("c", 1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


# 3: inside the first epoch; 5: at its last step; 8: inside the second; 10: at the very last step.
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("num_steps", [3, 5, 8, 10])
def test_stopping_and_resuming_equals_an_uninterrupted_run(
    num_steps: int, fresh: bool, tiny_data: Path, tmp_path: Path
) -> None:
    whole, expected = start(make_request(tiny_data, tmp_path / "whole", fresh=fresh))
    stopper = StopAfter(num_steps)
    with pytest.raises(Interrupted, match=r"the state is saved. Continue with `overlaycaps train --resume .*run`"):
        start(make_request(tiny_data, tmp_path / "parts", fresh=fresh), stopper, stopper.stop)
    resumed = prepare_resumed_run(ResumeRequest(tmp_path / "parts" / "run", cpu=True))
    result = train(resumed, SilentObserver(), StopFlag())

    for name in ("test", "validation", "model"):
        assert result[name] == expected[name]
    ours, theirs = load_checkpoint(resumed.folder.last_file), load_checkpoint(whole.folder.last_file)
    for key, value in theirs["model"].items():
        assert torch.equal(ours["model"][key], value), key
    lines = [
        [
            {key: value for key, value in json.loads(line).items() if key != "train_time_s"}
            for line in run.folder.metrics_file.read_text().splitlines()
        ]
        for run in (whole, resumed)
    ]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 2


def test_a_finished_or_foreign_run_is_not_resumed(tiny_data: Path, tmp_path: Path) -> None:
    run, _ = start(make_request(tiny_data, tmp_path, epochs=1))
    with pytest.raises(UserError, match="is finished already"):
        prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))
    with pytest.raises(UserError, match="does not exist"):
        prepare_resumed_run(ResumeRequest(tmp_path / "none", cpu=True))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").write_text("x")
    with pytest.raises(UserError, match="not a run folder"):
        prepare_resumed_run(ResumeRequest(tmp_path / "foreign", cpu=True))


def test_a_run_is_not_resumed_on_other_data(tiny_data: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.h5"
    data.write_bytes(tiny_data.read_bytes())
    stopper = StopAfter(2)
    with pytest.raises(Interrupted):
        start(make_request(data, tmp_path / "runs"), stopper, stopper.stop)
    spec = make_spec(seed=1, num_train=96, num_valid=40, num_test=48)
    write_dataset(data, spec, load_bundled(), force=True)
    with pytest.raises(UserError, match=r"not the data that .* was begun on"):
        prepare_resumed_run(ResumeRequest(tmp_path / "runs" / "run", cpu=True))


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(loss|gradient|weights)"):
        start(make_request(tiny_data, tmp_path, model="cnn", lr=1e30))
    assert not (tmp_path / "run" / "result.json").exists()


def test_fresh_overlays_are_new_in_every_epoch_and_the_same_for_every_model(tiny_data: Path, tmp_path: Path) -> None:
    def watch(model: str, **changes: Any) -> list[bytes]:
        seen: list[torch.Tensor] = []
        run = prepare_run(make_request(tiny_data, tmp_path, model=model, fresh=True, **changes))
        draw = type(run.data.train).draw

        def remember(*given: Any) -> Any:
            batch = draw(*given)
            seen.append(batch[0])
            return batch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(run.data.train), "draw", remember)
            run.folder.create(run.describe(), force=False)
            result = train(run, SilentObserver(), StopFlag())
        assert result["training"]["fresh"] is True
        return [image.numpy().tobytes() for batch in seen for image in batch]

    shown = watch("cnn", name="a")
    assert len(shown) == 192
    assert len(set(shown)) == 192
    assert watch("caps", name="b") == shown
    assert not set(watch("cnn", name="c", seed=1)) & set(shown)


def test_a_run_reads_a_split_that_is_too_large_for_memory(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = start(make_request(tiny_data, tmp_path, name="memory"))
    monkeypatch.setattr("overlaycaps.train.plan.load_data", partial(load_data, max_memory_bytes=1000))
    run, result = start(make_request(tiny_data, tmp_path, name="file"))
    assert isinstance(run.data.train, StoredSplit)
    assert isinstance(run.data.test, StoredSplit)
    for name in ("test", "validation"):
        assert result[name] == expected[name]


def test_the_number_of_classes_and_digits_follows_the_data(tmp_path: Path) -> None:
    names = tuple("abcdefghijklm")
    spec = make_tiny_spec(num_train=40, canvas_px=13, max_digits=3, single_fraction=0.2, class_names=names)
    write_dataset(tmp_path / "d.h5", spec, make_source(class_names=names))
    for model in ("caps", "cnn"):
        run, result = start(make_request(tmp_path / "d.h5", tmp_path, model=model, name=model, epochs=1))
        assert run.model_config.num_classes == 13
        assert len(result["test"]["per_class"]) == 13
        assert result["model"]["matching"][-1]["neurons"] == 13


@pytest.mark.parametrize("model", ["caps", "caps-matrix", "cnn", "cnn-pool"])
def test_models_learn(model: str, tiny_data: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    start(make_request(tiny_data, tmp_path, model=model, epochs=12, lr=0.02), recorder)
    losses = [evaluation.train_loss for evaluation in recorder.evaluations]
    assert losses[-1] < 0.85 * losses[0]


def test_bf16_runs_and_writes_its_result(tiny_data: Path, tmp_path: Path) -> None:
    _, result = start(make_request(tiny_data, tmp_path, precision="bf16", epochs=1))
    assert result["training"]["precision"] == "bf16"
    assert result["test"]["exact_match"]["total"] == 48
