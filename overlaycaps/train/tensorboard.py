"""What TensorBoard shows of a run; needs the extra ``tensorboard``."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overlaycaps.errors import UsageError
from overlaycaps.train.observer import Evaluation, Progress, Scoring

_STEPS_BETWEEN = 10


def check_tensorboard() -> None:
    """Check that TensorBoard is installed.

    Raises:
        UsageError: if it is not.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            '--tensorboard: it is not installed; install it with `pip install "overlaycaps[tensorboard]"`.'
        )


class TensorBoardObserver:
    """Writes training loss, learning rate and speed every few steps, and each evaluation, by optimiser step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def _write(self, name: str, value: float, step: int) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - needs the extra

            # A process that was killed may have written more than its last state knows of.
            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def on_scoring(self, scoring: Scoring) -> None:
        """Ignore it."""

    def on_progress(self, progress: Progress) -> None:
        """Write loss, learning rate and speed."""
        if self._writer is not None and progress.step % _STEPS_BETWEEN:
            return
        for name, value in (("loss", progress.loss), ("lr", progress.lr), ("images_per_s", progress.images_per_s)):
            self._write(f"training/{name}", value, progress.step)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Write the exact match and the mean training loss."""
        self._write("validation/exact_match", evaluation.exact_match, evaluation.step)
        self._write("training/mean_loss", evaluation.train_loss, evaluation.step)
        self._writer.flush()

    def on_warning(self, message: str) -> None:
        """Ignore it."""


@contextmanager
def open_tensorboard(folder: Path) -> Iterator[TensorBoardObserver]:
    """Write events into a folder while the block runs; a run that goes on adds a file to those that are there.

    Raises:
        UsageError: if TensorBoard is not installed.
    """
    check_tensorboard()
    observer = TensorBoardObserver(folder)
    try:
        yield observer
    finally:
        observer.close()
