"""What a run tells while it goes on; the command line shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step.

    Attributes:
        epoch: counted from 1.
        num_epochs: in all; the last may be cut.
        images_seen: by the run so far.
        num_images: that the run will have seen at its end.
        step: optimiser steps taken.
        loss: binary cross-entropy of the batch, mean over images and classes, in nats.
        lr: learning rate of the next step.
        images_per_s: of training, since the run (or its resumption) began; evaluation does not count.
        remaining_s: training time left at that rate.
    """

    epoch: int
    num_epochs: int
    images_seen: int
    num_images: int
    step: int
    loss: float
    lr: float
    images_per_s: float
    remaining_s: float


@dataclass(frozen=True)
class Evaluation:
    """One look at the validation split: exact-match ratio, and the mean training loss since the one before.

    ``num_left`` is the number of evaluations without a better one after which the run ends, or None.
    """

    epoch: int
    num_epochs: int
    images_seen: int
    train_loss: float
    exact_match: float
    is_best: bool
    step: int
    images_per_s: float
    num_left: int | None = None


@dataclass(frozen=True)
class Scoring:
    """How far a split (``validation`` or ``test``) is scored, in images."""

    split: str
    images_done: int
    num_images: int


class Observer(Protocol):
    """Receives what happens in a run."""

    def on_scoring(self, scoring: Scoring) -> None:
        """While a split is scored."""

    def on_progress(self, progress: Progress) -> None:
        """After an optimiser step."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After the validation split was scored."""

    def on_warning(self, message: str) -> None:
        """When something that was asked for cannot be, and the run goes on without it."""


class SilentObserver:
    """Shows nothing."""

    def on_scoring(self, scoring: Scoring) -> None:
        """Ignore it."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore it."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Ignore it."""

    def on_warning(self, message: str) -> None:
        """Ignore it."""


class ObserverGroup:
    """Several observers that are told the same."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = observers

    def on_scoring(self, scoring: Scoring) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_scoring(scoring)

    def on_progress(self, progress: Progress) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_progress(progress)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_evaluation(evaluation)

    def on_warning(self, message: str) -> None:
        """Tell all."""
        for observer in self.observers:
            observer.on_warning(message)
