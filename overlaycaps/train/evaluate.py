"""Scoring a model on a split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from overlaycaps.data.splits import Split
from overlaycaps.metrics.multilabel import MultilabelScores, score
from overlaycaps.models.base import OverlayModel
from overlaycaps.train.runtime import Runtime

_BATCH_SIZE = 250

Watch = Callable[[int, int], None]
"""Told after each batch how many images of how many are done; it may raise, to stop."""


@torch.no_grad()
def predict_logits(
    model: OverlayModel, split: Split, runtime: Runtime, watch: Watch | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of every image of a split, in order, float32 (N, classes), and its labels, uint8.

    Processes share the images, each of which is computed once; every process gets all logits.
    """
    was_training = model.training
    model.eval()
    ranks = runtime.ranks
    logits = torch.zeros(len(split), model.config.num_classes)
    labels = torch.zeros(len(split), model.config.num_classes, dtype=torch.uint8)
    try:
        with runtime.autocast():
            done = 0
            for positions in torch.arange(len(split)).split(_BATCH_SIZE * ranks.size):
                mine = ranks.share(positions)
                if len(mine):
                    images, truth = split.draw(0, mine)
                    logits[mine] = model(images.to(runtime.device)).float().cpu()
                    labels[mine] = truth.cpu()
                done += len(positions)
                if watch is not None:
                    watch(done, len(split))
    finally:
        model.train(was_training)
    # Where the others have their numbers, this process has zeros.
    return ranks.sum(logits).numpy(), ranks.sum(labels).numpy()


def evaluate(model: OverlayModel, split: Split, runtime: Runtime, watch: Watch | None = None) -> MultilabelScores:
    """Score a model on a split, by every rule of :mod:`overlaycaps.metrics.multilabel`."""
    return score(*predict_logits(model, split, runtime, watch))
