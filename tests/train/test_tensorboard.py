"""TensorBoard: its events tell what the run tells, and change nothing in it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from overlaycaps.cli import app
from overlaycaps.errors import Interrupted, UserError
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import Evaluation, Progress, SilentObserver
from overlaycaps.train.plan import ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run
from overlaycaps.train.session import carry_out
from tests.cli.conftest import read_tree

Scalars = dict[str, list[tuple[int, float]]]


class Recorder(SilentObserver):
    """Keeps what it is told, and may ask for a stop after a step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop, self.stop_at = StopFlag(), stop_at
        self.progress: list[Progress] = []
        self.evaluations: list[Evaluation] = []

    def on_progress(self, progress: Progress) -> None:
        self.progress.append(progress)
        self.stop.requested = progress.step == self.stop_at

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)

    def expect(self) -> Scalars:
        """Return the scalars that TensorBoard should show, but for the speed."""
        shown = [p for p in self.progress if p.step % 10 == 0 or p == self.progress[0]]
        return {
            "training/loss": [(p.step, p.loss) for p in shown],
            "training/lr": [(p.step, p.lr) for p in shown],
            "training/mean_loss": [(e.step, e.train_loss) for e in self.evaluations],
            "validation/exact_match": [(e.step, e.exact_match) for e in self.evaluations],
        }


@pytest.fixture
def request_(tiny_data: Path, tmp_path: Path) -> TrainRequest:
    """Three epochs of twelve steps."""
    return TrainRequest(
        model="cnn",
        size="tiny",
        data_path=tiny_data,
        runs_dir=tmp_path,
        cpu=True,
        epochs=3,
        batch_size=8,
        name="run",
        tensorboard=True,
    )


def read_scalars(folder: Path) -> Scalars:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def check_scalars(scalars: Scalars, expected: Scalars) -> None:
    for tag, values in expected.items():
        assert [step for step, _ in scalars[tag]] == [step for step, _ in values], tag
        assert [value for _, value in scalars[tag]] == pytest.approx([value for _, value in values], rel=1e-6), tag
    speeds = scalars["training/images_per_s"]
    assert [step for step, _ in speeds] == [step for step, _ in expected["training/loss"]]
    assert all(value > 0 for _, value in speeds)
    assert set(scalars) == {*expected, "training/images_per_s"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = load_checkpoint(folder / "last.pt")["model"]
    return model


def test_events_are_those_of_the_run(request_: TrainRequest) -> None:
    run, recorder = prepare_run(request_), Recorder()
    carry_out(run, recorder, recorder.stop, "new")
    expected = recorder.expect()
    assert [step for step, _ in expected["training/loss"]] == [1, 10, 20, 30]
    assert [step for step, _ in expected["validation/exact_match"]] == [12, 24, 36]
    check_scalars(read_scalars(run.folder.events_folder), expected)
    lines = [json.loads(line) for line in run.folder.metrics_file.read_text().splitlines()]
    exact = [line["validation"]["exact_match"] for line in lines]
    assert [value for _, value in expected["validation/exact_match"]] == [e["correct"] / e["total"] for e in exact]


def test_events_change_nothing_in_the_run(request_: TrainRequest) -> None:
    runs = [prepare_run(request_), prepare_run(replace(request_, name="plain", tensorboard=False))]
    results = [carry_out(run, SilentObserver(), StopFlag(), "new") for run in runs]
    assert not runs[1].folder.events_folder.exists()
    assert results[0]["test"] == results[1]["test"]
    with_events, without = (weights(run.folder.path) for run in runs)
    assert with_events.keys() == without.keys()
    assert all(torch.equal(with_events[name], without[name]) for name in without)


def test_a_run_that_goes_on_adds_to_its_events(request_: TrainRequest, tmp_path: Path) -> None:
    whole = Recorder()
    carry_out(prepare_run(replace(request_, name="whole", tensorboard=False)), whole, whole.stop, "new")
    first = Recorder(stop_at=15)
    run = prepare_run(request_)
    with pytest.raises(Interrupted):
        carry_out(run, first, first.stop, "new")
    before = read_tree(run.folder.events_folder)
    assert before
    second = Recorder()
    resumed = prepare_resumed_run(ResumeRequest(tmp_path / "run", cpu=True, tensorboard=True))
    carry_out(resumed, second, second.stop, "resume")
    assert read_tree(run.folder.events_folder).items() >= before.items()
    before_and_after = first.expect(), second.expect()
    joined = {tag: before_and_after[0][tag] + before_and_after[1][tag] for tag in before_and_after[0]}
    assert [step for step, _ in joined["training/loss"]] == [1, 10, 16, 20, 30]
    assert joined["validation/exact_match"] == whole.expect()["validation/exact_match"]
    check_scalars(read_scalars(run.folder.events_folder), joined)


def test_a_run_that_begins_anew_has_no_old_events(request_: TrainRequest) -> None:
    run = prepare_run(request_)
    carry_out(run, SilentObserver(), StopFlag(), "new")
    own = run.folder.events_folder / "notes.txt"
    own.write_text("mine")
    recorder = Recorder()
    carry_out(prepare_run(replace(request_, epochs=1)), recorder, recorder.stop, "replace")
    check_scalars(read_scalars(run.folder.events_folder), recorder.expect())
    assert own.read_text() == "mine"
    carry_out(prepare_run(replace(request_, tensorboard=False)), SilentObserver(), StopFlag(), "replace")
    assert list(run.folder.events_folder.iterdir()) == [own]


@pytest.fixture
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def find_other(name: str, *more: Any) -> Any:
        return None if name == "tensorboard" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", find_other)


@pytest.mark.usefixtures("no_tensorboard")
def test_without_the_package_it_is_refused_before_anything_is_written(request_: TrainRequest, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r'--tensorboard: it is not installed.*pip install "overlaycaps\[tensorboard\]"'
    ):
        prepare_run(request_)
    assert not list(tmp_path.iterdir())


def give(*words: object) -> int | str | None:
    """Give a command, and return its exit code."""
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(app).main([str(word) for word in words], prog_name="overlaycaps")
    return end.value.code


@pytest.mark.usefixtures("no_tensorboard")
@pytest.mark.parametrize("several", [[], ["--seeds", "0-1"]], ids=["one", "several"])
def test_the_command_line_names_the_remedy(
    several: list[str], tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--size", "tiny", "--cpu", "--data", tiny_data, "--images", "96", "--runs", tmp_path / "runs"]
    assert give(*words, *several, "--tensorboard") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --tensorboard: it is not installed")
    assert 'pip install "overlaycaps[tensorboard]"' in line
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_tensorboard")
def test_going_on_with_it_needs_the_package_too(
    request_: TrainRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(stop_at=2)
    run = prepare_run(replace(request_, tensorboard=False))
    with pytest.raises(Interrupted):
        carry_out(run, recorder, recorder.stop, "new")
    before = read_tree(tmp_path)
    assert give("train", "--resume", tmp_path / "run", "--cpu", "--tensorboard") == 2
    assert 'pip install "overlaycaps[tensorboard]"' in capsys.readouterr().err
    assert read_tree(tmp_path) == before
    assert give("train", "--resume", tmp_path / "run", "--cpu") == 0
