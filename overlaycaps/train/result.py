"""What a finished run leaves for the comparison: ``result.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlaycaps.metrics.intervals import wilson_interval
from overlaycaps.metrics.multilabel import MultilabelScores
from overlaycaps.models.base import OverlayModel
from overlaycaps.schemas import RESULT_SCHEMA, RESULT_VERSION
from overlaycaps.train.plan import PreparedRun
from overlaycaps.train.state import Position


def describe_result(
    run: PreparedRun, model: OverlayModel, at: Position, test: MultilabelScores, is_compiled: bool
) -> dict[str, Any]:
    """Return everything that ``compare`` needs, as plain data.

    Args:
        run: what was run.
        model: as trained.
        at: position at the end.
        test: scores of the chosen checkpoint on the test split.
        is_compiled: whether the training steps were, which may have been asked for in vain.
    """
    config = run.config
    return {
        "schema": RESULT_SCHEMA,
        "schema_version": RESULT_VERSION,
        "run": run.folder.path.name,
        "model": {
            "name": config.model,
            **model.describe_routing(),
            "size": config.size,
            "parameters": model.count_parameters(),
            "config": model.config.to_dict(),
            "matching": [layer.to_dict() for layer in model.describe_layers()],
        },
        "training": {
            "seed": config.seed,
            "images_seen": at.images_seen,
            "images_planned": config.num_images,
            "steps": at.step,
            "batch_size": config.batch_size,
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "optimizer": config.optimizer,
            "schedule": config.lr_schedule,
            "warm_up": config.warm_up,
            "clip_norm": config.clip_norm,
            "patience": config.patience,
            "accumulate": run.accumulate,
            "precision": run.runtime.precision,
            "compile": is_compiled,
            "fresh": config.fresh,
            "train_time_s": at.train_time_s,
            "images_per_s": at.images_seen / at.train_time_s,
            "peak_memory_mib": at.peak_memory_mib,
            "best_epoch": at.best_epoch,
            "epochs_done": at.epochs_done,
            "num_epochs": run.plan_batches().num_epochs,
        },
        "data": run.data.describe(),
        "environment": run.runtime.describe(),
        "validation": at.best_scores,
        "test": test.to_dict(),
    }


def summarize_result(result: Mapping[str, Any]) -> str:
    """Return one line: exact match on the test split with its binomial 95 % interval."""
    exact = result["test"]["exact_match"]
    low, high = wilson_interval(exact["correct"], exact["total"])
    return (
        f"{result['run']}: test exact match {exact['correct'] / exact['total'] * 100:.2f} % "
        f"(95 % interval {low * 100:.2f} to {high * 100:.2f}, {exact['total']:,} images)"
    )
