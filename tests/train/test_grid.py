"""Grids of runs: which cells there are, what becomes of each, and that one costs no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from overlaycaps.errors import UserError
from overlaycaps.train import grid
from overlaycaps.train.grid import CellOutcome, parse_models, parse_seeds, plan_grid, run_cell, run_grid
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import Progress, SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run


class Recorder(SilentObserver):
    """Keeps what it is told, and may ask for a stop after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop = StopFlag()
        self.left = stop_after
        self.cells: list[tuple[int, int, str]] = []
        self.outcomes: list[CellOutcome] = []
        self.warnings: list[str] = []

    def on_progress(self, progress: Progress) -> None:
        if self.left is not None:
            self.left -= 1
            self.stop.requested = self.left <= 0

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)

    def on_cell(self, number: int, total: int, label: str) -> None:
        self.cells.append((number, total, label))

    def on_outcome(self, outcome: CellOutcome) -> None:
        self.outcomes.append(outcome)


@pytest.fixture
def requests(tiny_data: Path, tmp_path: Path) -> list[TrainRequest]:
    """Four cells of two epochs with two steps each."""
    base = TrainRequest(
        model="caps", size="tiny", data_path=tiny_data, runs_dir=tmp_path / "runs", cpu=True, epochs=2, batch_size=48
    )
    return plan_grid(base, ["caps", "cnn"], [0, 1])


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cells have no process of their own, which takes seconds to start."""
    monkeypatch.setattr(grid, "run_cell_apart", run_cell)


def states(outcomes: list[CellOutcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", [0]),
        ("0-4", [0, 1, 2, 3, 4]),
        ("7-7", [7]),
        ("0,2,5-7", [0, 2, 5, 6, 7]),
        (" 3 - 4 , 1 ", [3, 4, 1]),
        ("2,0-3,2", [2, 0, 1, 3]),
        ("0-9999", list(range(10_000))),
        ("999999999999999999", [10**18 - 1]),
    ],
)
def test_seeds_are_numbers_and_ranges_each_once(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-1", "1-", "4-0", "1.5", "1-2-3", "0x1", "٣", "9" * 19, "1;2"])
def test_other_texts_are_no_seeds(text: str) -> None:
    with pytest.raises(UserError, match="write numbers and ranges, as in 0-4 or 0,2,5-7") as error:
        parse_seeds(text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("text", ["0-10000", "0-5000,6000-12000", "1-999999999999999999"])
def test_seeds_are_not_without_end(text: str) -> None:
    with pytest.raises(UserError, match="more than 10,000 runs") as error:
        parse_seeds(text)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "models"),
    [("caps", ["caps"]), ("caps,cnn", ["caps", "cnn"]), (" cnn , caps,cnn", ["cnn", "caps"]), ("a.b:c", ["a.b:c"])],
)
def test_models_are_names_each_once(text: str, models: list[str]) -> None:
    assert parse_models(text) == models


@pytest.mark.parametrize("text", ["", " ", ",", "caps,", "caps,,cnn"])
def test_an_empty_name_is_no_model(text: str) -> None:
    with pytest.raises(UserError, match="write names with commas between them, as in caps,cnn") as error:
        parse_models(text)
    assert error.value.exit_code == 2


def test_a_grid_has_every_model_with_the_first_seed_first(requests: list[TrainRequest]) -> None:
    assert [(cell.model, cell.seed) for cell in requests] == [("caps", 0), ("cnn", 0), ("caps", 1), ("cnn", 1)]
    assert {replace(cell, model="caps", seed=0) for cell in requests} == {requests[0]}, "nothing else differs"


@pytest.mark.usefixtures("in_this_process")
def test_every_cell_is_told_before_and_after(requests: list[TrainRequest]) -> None:
    recorder = Recorder()
    outcomes = run_grid(requests, recorder, recorder.stop)
    assert recorder.cells == [
        (number, 4, label)
        for number, label in enumerate(["caps seed 0", "cnn seed 0", "caps seed 1", "cnn seed 1"], start=1)
    ]
    assert recorder.outcomes == outcomes
    assert states(outcomes) == ["finished"] * 4
    for outcome, request in zip(outcomes, requests, strict=True):
        folder = prepare_run(request).folder
        assert folder.is_finished()
        assert outcome.message.startswith(f"{folder.path.name}: test exact match ")


@pytest.mark.usefixtures("in_this_process")
def test_a_stop_saves_the_present_cell_and_leaves_the_rest(requests: list[TrainRequest], tmp_path: Path) -> None:
    recorder = Recorder(stop_after=5)  # a cell has four steps
    outcomes = run_grid(requests, recorder, recorder.stop)
    assert states(outcomes) == ["finished", "interrupted", "interrupted", "interrupted"]
    assert "the state is saved" in outcomes[1].message
    assert [outcome.message for outcome in outcomes[2:]] == ["", ""]
    assert len(list((tmp_path / "runs").iterdir())) == 2
    again = Recorder()
    assert states(run_grid(requests, again, again.stop)) == ["skipped", "finished", "finished", "finished"]


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_cell_goes_on_in_the_precision_it_began_with_and_in_as_many_parts_as_are_asked_for(
    num_parts: int, requests: list[TrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = replace(requests[0], accumulate=2)
    recorder = Recorder(stop_after=1)
    monkeypatch.setattr("overlaycaps.train.runtime.has_fast_bfloat16", lambda: True)
    assert states(run_grid([cell], recorder, recorder.stop)) == ["interrupted"]
    monkeypatch.setattr("overlaycaps.train.runtime.has_fast_bfloat16", lambda: False)  # on another machine
    again = Recorder()
    assert states(run_grid([replace(cell, accumulate=num_parts)], again, again.stop)) == ["finished"]
    result = json.loads(prepare_run(cell).folder.result_file.read_text())
    assert result["training"]["precision"] == "bf16"
    assert result["training"]["accumulate"] == num_parts


@pytest.mark.usefixtures("in_this_process")
def test_a_cell_that_cannot_be_begun_costs_no_other(requests: list[TrainRequest]) -> None:
    cells = [replace(requests[0], data_path=Path("nowhere.h5")), replace(requests[0], lr=1e30), requests[1]]
    recorder = Recorder()
    outcomes = run_grid(cells, recorder, recorder.stop)
    assert states(outcomes) == ["failed", "failed", "finished"]
    assert "nowhere.h5: no such file" in outcomes[0].message
    assert "not finite" in outcomes[1].message


@pytest.mark.usefixtures("in_this_process")
def test_an_option_that_does_not_fit_a_later_cell_is_told_before_any_work(
    requests: list[TrainRequest], tmp_path: Path
) -> None:
    recorder = Recorder()
    with pytest.raises(UserError, match="--model nothing: no such name") as error:
        run_grid([*requests, replace(requests[0], model="nothing")], recorder, recorder.stop)
    assert error.value.exit_code == 2
    assert recorder.cells == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_fault_of_the_program_is_not_taken_for_an_outcome(
    requests: list[TrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(grid, "carry_out", break_down)
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError):
        run_grid(requests, recorder, recorder.stop)


def test_what_needs_no_process_gets_none(requests: list[TrainRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    assert run_cell(requests[0], recorder, recorder.stop).state == "finished"

    def refuse(_method: str) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("multiprocessing.get_context", refuse)
    cells = [requests[0], replace(requests[0], data_path=Path("nowhere.h5"))]
    assert states(run_grid(cells, recorder, recorder.stop)) == ["skipped", "failed"]
    with pytest.raises(AssertionError, match="a process was started"):
        run_grid(cells, recorder, recorder.stop, force=True)
