"""What a run is said to take is what it takes, as far as that does not depend on the hour."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from overlaycaps.models import build_model
from overlaycaps.train.forecast import CellForecast, forecast, forecast_grid
from overlaycaps.train.grid import plan_grid
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run
from overlaycaps.train.ranks import ALONE
from overlaycaps.train.session import carry_out
from tests.cli.conftest import read_tree


@pytest.fixture
def request_(tiny_data: Path, tmp_path: Path) -> TrainRequest:
    return TrainRequest(
        model="cnn", size="tiny", data_path=tiny_data, runs_dir=tmp_path / "runs", cpu=True, images=250, batch_size=20
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"images": 20},
        {"images": 96, "batch_size": 96},
        {"images": None, "epochs": 2},
        {"model": "caps", "batch_size": 7},
        {"fresh": True},
        {"accumulate": 3},
    ],
    ids=str,
)
def test_steps_and_epochs_are_those_of_the_run(changes: dict[str, object], request_: TrainRequest) -> None:
    run = prepare_run(replace(request_, **changes))  # type: ignore[arg-type]  # of any field
    told = forecast(run)
    assert not run.folder.path.parent.exists(), "nothing is written"
    result = carry_out(run, SilentObserver(), StopFlag(), "new")
    assert told.num_steps == result["training"]["steps"]
    assert told.num_epochs == result["training"]["num_epochs"] == result["training"]["epochs_done"]
    assert told.parameters == result["model"]["parameters"]
    assert told.warning is None


def test_times_fit_each_other(request_: TrainRequest) -> None:
    run = prepare_run(request_)
    told = forecast(run)
    assert math.isfinite(told.images_per_s)
    assert told.images_per_s > 0
    assert told.train_time_s == pytest.approx(250 / told.images_per_s)
    assert told.scoring_time_s > 0
    assert told.total_time_s == told.train_time_s + told.scoring_time_s
    assert 1 <= told.steps_measured <= 5


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_disk_is_filled_as_was_said(optimizer: str, request_: TrainRequest) -> None:
    run = prepare_run(replace(request_, size="small", images=150, batch_size=48, optimizer=optimizer))
    told = forecast(run)
    carry_out(run, SilentObserver(), StopFlag(), "new")
    files = [run.folder.last_file, run.folder.previous_file, run.folder.best_file]
    assert told.disk_mib == pytest.approx(sum(file.stat().st_size for file in files) / 2**20, rel=0.1)


def test_a_measurement_changes_no_run(request_: TrainRequest) -> None:
    def train(name: str, *, is_measured: bool) -> dict[str, torch.Tensor]:
        run = prepare_run(replace(request_, name=name))
        if is_measured:
            forecast(run)
        carry_out(run, SilentObserver(), StopFlag(), "new")
        weights: dict[str, torch.Tensor] = torch.load(run.folder.best_file, weights_only=True)["model"]
        return weights

    plain, measured = train("a", is_measured=False), train("b", is_measured=True)
    assert all(torch.equal(plain[name], measured[name]) for name in plain)


def test_a_grid_measures_each_model_once_and_knows_what_is_done(
    request_: TrainRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = plan_grid(request_, ["caps", "cnn"], [0, 1])
    finished = prepare_run(cells[1])
    carry_out(finished, SilentObserver(), StopFlag(), "new")
    measured: list[str] = []

    def build(name: str, *given: object) -> torch.nn.Module:
        measured.append(name)
        return build_model(name, *given)  # type: ignore[arg-type]  # whatever is given

    monkeypatch.setattr("overlaycaps.train.step.build_model", build)
    before = read_tree(request_.runs_dir)
    told: list[CellForecast] = forecast_grid(cells, ALONE)
    assert measured == ["caps", "cnn"]
    assert [cell.todo for cell in told] == ["start", "finished", "start", "start"]
    assert [cell.run.config.seed for cell in told] == [0, 0, 1, 1]
    assert told[0].forecast == told[2].forecast
    assert told[0].forecast != told[1].forecast
    assert read_tree(request_.runs_dir) == before
