"""The state of a run on disk: all that resuming needs, in ``last.pt``, with the one before kept as ``previous.pt``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from overlaycaps.errors import UserError
from overlaycaps.train.checkpoint import load_checkpoint, load_weights, save_checkpoint
from overlaycaps.train.run_folder import RunFolder
from overlaycaps.train.step import TrainStep


@dataclass
class Position:
    """How far a run is; with weights, optimiser and schedule it is all that resuming needs.

    The order of the images is a function of seed and epoch, and nothing in the loop draws random numbers.

    Attributes:
        step: optimiser steps taken.
        images_seen: by all processes.
        epochs_done: epochs whose evaluation is done too.
        loss_sum: of the epoch so far, over its ``loss_images`` images.
        train_time_s: of the steps, with what they wait for data; evaluations and checkpoints do not count.
        peak_memory_mib: of the process (on a GPU: of the device), the largest of all; None where it is not known.
        stale_evaluations: in a row without a better validation exact match.
    """

    step: int = 0
    images_seen: int = 0
    epochs_done: int = 0
    loss_sum: float = 0.0
    loss_images: int = 0
    train_time_s: float = 0.0
    peak_memory_mib: float | None = None
    best_exact_match: float = -1.0
    best_epoch: int = 0
    best_images_seen: int = 0
    best_scores: dict[str, Any] = field(default_factory=dict)
    stale_evaluations: int = 0


Weights = dict[str, Tensor]


def save_state(folder: RunFolder, step: TrainStep, at: Position, best: Weights) -> None:
    """Write ``last.pt``; the one that was there becomes ``previous.pt``.

    Raises:
        UserError: if it cannot be written; the states that were there are kept.
    """
    state = {
        "model": step.model.state_dict(),
        "optimizer": step.optimizer.state_dict(),
        "schedule": step.schedule.state_dict(),
        "position": vars(at),
        # The best weights are part of the state: what lies in best.pt may be of an evaluation that a killed process
        # made after this state, or be damaged.
        "best_model": best,
    }
    save_checkpoint(folder.last_file, state, folder.previous_file)


def read_state(folder: RunFolder) -> tuple[dict[str, Any] | None, list[str]]:
    """Read the newest state that is sound.

    Returns:
        The state, or None if the run has saved none; and what to warn of.

    Raises:
        UserError: if there are states, but none is sound.
    """
    warnings: list[str] = []
    for file in (folder.last_file, folder.previous_file):
        if not file.exists():
            continue
        try:
            state = load_checkpoint(file)
        except UserError as error:
            warnings.append(str(error))
            continue
        if file == folder.previous_file:
            told = warnings[0].partition(";")[0] if warnings else f"{folder.last_file} is missing"
            # It must not take the place of the sound one when the next state is saved.
            folder.last_file.unlink(missing_ok=True)
            return state, [f"{told}; going on from the state before it, {file.name}."]
        return state, []
    if warnings:
        raise UserError(warnings[0])
    return None, []


def restore_state(folder: RunFolder, state: dict[str, Any], step: TrainStep) -> tuple[Position, Weights]:
    """Put a state into model, optimiser and schedule.

    Returns:
        The position, and the best weights so far.

    Raises:
        UserError: if the state is not of this run.
    """
    try:
        load_weights(step.model, state["model"])
        step.optimizer.load_state_dict(state["optimizer"])
        step.schedule.load_state_dict(state["schedule"])
        return _check_position(Position(**state["position"]), step), dict(state["best_model"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder.last_file} is not a state of this run; train it again with --force.") from error


def _check_position(at: Position, step: TrainStep) -> Position:
    """Return the position if its numbers are of their kinds and fit each other.

    Raises:
        ValueError: if they do not.
    """
    counts = (at.step, at.images_seen, at.epochs_done, at.loss_images, at.best_epoch, at.best_images_seen)
    figures = (at.loss_sum, at.train_time_s, at.best_exact_match, at.peak_memory_mib or 0.0)
    are_sound = (
        all(type(count) is int and count >= 0 for count in (*counts, at.stale_evaluations))
        and all(type(figure) in (int, float) and math.isfinite(figure) for figure in figures)
        and isinstance(at.best_scores, dict)
        and at.step == step.schedule.last_epoch  # torch's word for the steps that a schedule has taken
        and at.epochs_done <= at.step <= at.images_seen
        and at.best_epoch <= at.epochs_done
        and (at.train_time_s > 0) == (at.step > 0)
    )
    if not are_sound:
        raise ValueError("the numbers of the position do not fit each other")
    return at
