"""What a run tells while it goes on; the command line shows it."""

from __future__ import annotations

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
        loss: binary cross-entropy of the batch, mean over images and classes, in nats.
        images_per_s: of training, since the run (or its resumption) began; evaluation does not count.
        remaining_s: training time left at that rate.
    """

    epoch: int
    num_epochs: int
    images_seen: int
    num_images: int
    loss: float
    images_per_s: float
    remaining_s: float


@dataclass(frozen=True)
class Evaluation:
    """One look at the validation split: exact-match ratio, and the mean training loss since the one before."""

    epoch: int
    num_epochs: int
    images_seen: int
    train_loss: float
    exact_match: float
    is_best: bool


class Observer(Protocol):
    """Receives what happens in a run."""

    def on_progress(self, progress: Progress) -> None:
        """After an optimiser step."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After the validation split was scored."""

    def on_warning(self, message: str) -> None:
        """When something that was asked for cannot be, and the run goes on without it."""


class SilentObserver:
    """Shows nothing."""

    def on_progress(self, progress: Progress) -> None:
        """Ignore it."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Ignore it."""

    def on_warning(self, message: str) -> None:
        """Ignore it."""
