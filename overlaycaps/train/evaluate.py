"""Scoring a model on a split."""

from __future__ import annotations

import numpy as np
import torch

from overlaycaps.data.splits import Split
from overlaycaps.metrics.multilabel import MultilabelScores, score
from overlaycaps.models.base import OverlayModel
from overlaycaps.train.runtime import Runtime

_BATCH_SIZE = 250


@torch.no_grad()
def predict_logits(model: OverlayModel, split: Split, runtime: Runtime) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits of every image of a split, in order, float32 (N, classes), and its labels, uint8."""
    was_training = model.training
    model.eval()
    logits, labels = [], []
    with runtime.autocast():
        for positions in torch.arange(len(split)).split(_BATCH_SIZE):
            images, truth = split.draw(0, positions)
            logits.append(model(images.to(runtime.device)).float().cpu())
            labels.append(truth.cpu())
    model.train(was_training)
    return torch.cat(logits).numpy(), torch.cat(labels).numpy()


def evaluate(model: OverlayModel, split: Split, runtime: Runtime) -> MultilabelScores:
    """Score a model on a split, by every rule of :mod:`overlaycaps.metrics.multilabel`."""
    return score(*predict_logits(model, split, runtime))
