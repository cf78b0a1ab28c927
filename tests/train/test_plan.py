"""From a request to a run: defaults, names, what is refused, what is read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overlaycaps.config import DEFAULT_EPOCHS, SIZES, CapsuleConfig, TrainConfig
from overlaycaps.errors import UsageError, UserError
from overlaycaps.train.optimizers import OPTIMIZERS
from overlaycaps.train.plan import ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run


@pytest.fixture
def request_(tiny_data: Path, tmp_path: Path) -> TrainRequest:
    return TrainRequest(model="caps", size="tiny", data_path=tiny_data, runs_dir=tmp_path, cpu=True)


def test_defaults_are_filled_in(request_: TrainRequest) -> None:
    run = prepare_run(request_)
    assert run.config.num_images == DEFAULT_EPOCHS * 96
    assert run.config.lr == OPTIMIZERS["adamw"].lr
    assert run.model_config == SIZES["tiny"]
    assert prepare_run(replace(request_, epochs=3)).config.num_images == 288
    assert prepare_run(replace(request_, images=100)).config.num_images == 100
    assert not list(request_.runs_dir.iterdir()), "preparing a run writes nothing"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"images": 2000}, "caps-tiny-2k-seed0"),
        ({"images": 2001, "seed": 7}, "caps-tiny-2001-seed7"),
        ({"images": 2000, "routing": "uniform"}, "caps-uniform-tiny-2k-seed0"),
        (
            {"images": 2000, "model": "caps-matrix", "routing_iterations": 3, "schedule": "sequential"},
            "caps-matrix-it3-sequential-tiny-2k-seed0",
        ),
        ({"images": 2000, "layer_norm": False, "scale_agreement": False}, "caps-unscaled-unnormalized-tiny-2k-seed0"),
        (
            {"images": 2000, "model": "overlaycaps.models.caps:build_vector"},
            "overlaycaps.models.caps.build_vector-tiny-2k-seed0",
        ),
        ({"images": 2000, "compile": True}, "caps-tiny-2k-compiled-seed0"),
        ({"images": 2000, "optimizer": "sgd", "clip_norm": 1.0}, "caps-tiny-2k-sgd-clip1-seed0"),
        (
            {"images": 2000, "lr": 0.01, "batch_size": 32, "lr_schedule": "cosine", "warm_up": 0.0, "patience": 3},
            "caps-tiny-2k-lr0.01-batch32-cosine-warmup0-patience3-seed0",
        ),
        ({"name": "mine"}, "mine"),
    ],
)
def test_a_run_is_named_after_what_makes_it_different(
    changes: dict[str, Any], name: str, request_: TrainRequest
) -> None:
    assert prepare_run(replace(request_, **changes)).folder.path.name == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 1, "images": 100}, "--epochs and --images exclude"),
        ({"epochs": 0}, "--epochs 0"),
        ({"images": -1}, "--images -1"),
        ({"images": 19}, "19 training images do not fill one batch of 64"),
        ({"batch_size": 0}, "--batch-size 0"),
        ({"lr": 0.0}, "--lr 0.0"),
        ({"lr": float("nan")}, "--lr nan"),
        ({"seed": -1}, "--seed -1"),
        ({"precision": "fp16"}, "--precision fp16"),
        ({"model": "cpas"}, "Did you mean caps"),
        ({"size": "smal"}, "Did you mean small"),
        ({"routing": "attentoin"}, "Did you mean attention"),
        ({"schedule": "concurent"}, "Did you mean concurrent"),
        ({"routing_iterations": 0}, "--routing-iterations 0"),
        ({"name": "a/b"}, "--name 'a/b'"),
        ({"name": ".."}, "--name '..'"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str, request_: TrainRequest) -> None:
    with pytest.raises(UsageError, match=message):
        prepare_run(replace(request_, **changes))


def test_configurations_survive_a_file() -> None:
    config = TrainConfig("caps", "tiny", 0, 100, 10, 0.1, 0.0, "auto")
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    model = replace(SIZES["small"], pose="matrix", layer_norm=False, schedule="sequential")
    assert CapsuleConfig.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("training", "seed", "0"),
        ("training", "seed", True),
        ("training", "lr", None),
        ("training", "model", 3),
        ("training", "extra", 1),
        ("model", "layer_norm", 1),
        ("model", "num_capsules", 4.0),
        ("model", "pose", "cube"),
        ("data", "path", None),
    ],
)
def test_a_damaged_configuration_is_refused(part: str, field: str, value: object, request_: TrainRequest) -> None:
    run = prepare_run(request_)
    run.folder.create(run.describe(), force=False)
    run.folder.last_file.write_bytes(b"state")
    content = json.loads(run.folder.config_file.read_text())
    content[part][field] = value
    run.folder.config_file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))


def test_a_run_from_before_there_was_compile_is_known_again_and_resumed(request_: TrainRequest) -> None:
    run = prepare_run(request_)
    run.folder.create(run.describe(), force=False)
    run.folder.last_file.write_bytes(b"state")
    content = json.loads(run.folder.config_file.read_text())
    del content["training"]["compile"]
    run.folder.config_file.write_text(json.dumps(content))
    assert run.is_stored()
    assert not prepare_run(replace(request_, name=run.folder.path.name, compile=True)).is_stored()
    assert prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True)).config.compile is False


@pytest.mark.parametrize("training", [None, [], {"seed": 0}])
def test_a_damaged_run_is_not_taken_for_this_one(training: object, request_: TrainRequest) -> None:
    run = prepare_run(request_)
    run.folder.create(run.describe(), force=False)
    content = json.loads(run.folder.config_file.read_text())
    run.folder.config_file.write_text(json.dumps({**content, "training": training}))
    assert not run.is_stored()


def test_a_stored_run_is_known_again(request_: TrainRequest) -> None:
    run = prepare_run(request_)
    assert not run.is_stored()
    run.folder.create(run.describe(), force=False)
    assert run.is_stored()
    assert not prepare_run(replace(request_, name=run.folder.path.name, lr=0.5)).is_stored()
    assert not prepare_run(replace(request_, name=run.folder.path.name, routing_iterations=3)).is_stored()


def test_a_folder_chooses_no_code_to_import(request_: TrainRequest) -> None:
    run = prepare_run(replace(request_, model="overlaycaps.models.caps:build_vector"))
    run.folder.create(run.describe(), force=False)
    run.folder.last_file.write_bytes(b"state")
    with pytest.raises(UserError, match=r"runs code from overlaycaps\.models\.caps:build_vector; if you trust it"):
        prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True))
    named = {"overlaycaps.models.caps:build_vector"}
    assert prepare_resumed_run(ResumeRequest(run.folder.path, cpu=True, named=named)).config == run.config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "builtins:str"}, "--model builtins:str built a str"),
        ({"routing": "builtins:str"}, "--routing builtins:str is no routing"),
        ({"routing": "math:pi"}, "--routing math:pi is no routing"),
        ({"model": "no_such_module:build"}, "could not be loaded"),
    ],
)
def test_code_that_is_no_model_or_routing_is_refused(
    changes: dict[str, Any], message: str, request_: TrainRequest
) -> None:
    with pytest.raises(UsageError, match=message):
        prepare_run(replace(request_, **changes))
