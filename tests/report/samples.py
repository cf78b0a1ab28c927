"""Hand-made results of runs, with figures that tests can expect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.report.results import RunCollection, collect_runs

# What the models have at size tiny. Equal neurons in every layer; only the parameters differ.
_SHAPES = ((8, 18, 18), (16, 8, 8), (16, 6, 6), (10, 4), (10,))
_LAYERS = ("conv 3x3 / stride 2", "primary 3x3 / stride 2", "hidden 3x3", "fully connected", "logits")
_PARAMETERS = {
    "caps": (80, 1160, 2312, 23048, 5),
    "caps-matrix": (80, 1160, 584, 5768, 5),
    "cnn": (80, 1168, 2320, 23080, 410),
    "cnn-pool": (80, 1168, 2320, 680, 410),
}
_POSES = {"caps": "vector", "caps-matrix": "matrix"}

# Right answers of 1200 singles and of 6000 overlays. With 7200 test samples a point is 72 of them.
COUNTS = {"caps": (1080, 4110), "caps-matrix": (1050, 4080), "cnn": (1100, 4230), "cnn-pool": (900, 3000)}


def make_result(model: str = "caps", **changes: Any) -> dict[str, Any]:
    """Return the result of a run; ``changes`` replace fields by their path, as ``training__seed=1``."""
    single, overlaid = COUNTS[model]
    pose = _POSES.get(model)
    result: dict[str, Any] = {
        "schema": "overlaycaps.result",
        "schema_version": 1,
        "run": f"{model}-small-240k-seed0",
        "model": {
            "name": model,
            "pose": pose,
            "routing": "attention" if pose else None,
            "routing_iterations": 2 if pose else None,
            "size": "small",
            "parameters": sum(_PARAMETERS[model]),
            "config": {"num_channels": 8, "num_capsules": 4, "pose_size": 4},
            "matching": [
                {"layer": layer, "shape": list(shape), "neurons": math.prod(shape), "parameters": parameters}
                for layer, shape, parameters in zip(_LAYERS, _SHAPES, _PARAMETERS[model], strict=True)
            ],
        },
        "training": {
            "seed": 0,
            "images_seen": 240_000,
            "steps": 1875,
            "batch_size": 128,
            "lr": 0.004,
            "weight_decay": 0.01,
            "optimizer": "adamw",
            "schedule": "one-cycle",
            "precision": "fp32",
            "train_time_s": 512.3,
            "images_per_s": 468.5,
            "best_epoch": 4,
            "num_epochs": 4,
        },
        "data": {
            "path": "data.h5",
            "digest": "0f" * 32,
            "spec": {"protocol": "diverse", "seed": 0},
            "num_train": 60_000,
            "num_valid": 3600,
            "num_test": 7200,
        },
        "environment": {
            "device": "cpu",
            "device_name": "AMD EPYC 9B45",
            "threads": 2,
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "numpy": "2.4.6",
            "overlaycaps": "0.1.0",
            "platform": "Linux-6.1-x86_64",
        },
        "validation": make_scores(single // 2, 600, overlaid // 2, 3000),
        "test": make_scores(single, 1200, overlaid, 6000),
    }
    for path, value in changes.items():
        *outer, last = path.split("__")
        place = result
        for key in outer:
            place = place[key]
        place[last] = value
    return result


def make_scores(single: int, num_single: int, overlaid: int, num_overlaid: int) -> dict[str, Any]:
    """Return scores with these counts of exact matches."""
    exact = Proportion(single + overlaid, num_single + num_overlaid)
    return {
        "num_samples": exact.total,
        "exact_match": exact.to_dict(),
        "exact_match_single": {"correct": single, "total": num_single},
        "exact_match_overlaid": {"correct": overlaid, "total": num_overlaid},
        "top_k": {"correct": exact.correct + 180, "total": exact.total},
        "half_credit": {"mean": 0.875, "total": exact.total},
        "hamming_loss": 0.0512,
        "macro_f1": 0.8734,
        "per_class": [{"class": label, "precision": 0.9, "recall": 0.85, "support": 1320} for label in range(10)],
    }


def write_run(runs: Path, name: str, result: dict[str, Any] | None) -> Path:
    """Write a run's folder; without a result it is an unfinished one."""
    folder = runs / name
    folder.mkdir(parents=True)
    config = {"schema": "overlaycaps.run", "schema_version": 1}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def collect(runs: Path, **results: dict[str, Any]) -> RunCollection:
    """Write runs, named as the arguments, and read them back."""
    for name, result in results.items():
        write_run(runs, name, result)
    return collect_runs(runs)


def collect_four(runs: Path) -> RunCollection:
    """Write one run of each model, under the names that the program gives, and read them back."""
    for model in COUNTS:
        write_run(runs, f"{model}-small-240k-seed0", make_result(model))
    return collect_runs(runs)
