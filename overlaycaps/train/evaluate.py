"""Scoring a model on a split."""

from __future__ import annotations

import numpy as np
import torch

from overlaycaps.data import SplitData
from overlaycaps.metrics.multilabel import MultilabelScores, score
from overlaycaps.models.base import OverlayModel
from overlaycaps.train.runtime import Runtime

_BATCH_SIZE = 250


@torch.no_grad()
def predict_logits(model: OverlayModel, split: SplitData, runtime: Runtime) -> np.ndarray:
    """Return the logits of every image of a split, in order, float32 (N, 10)."""
    was_training = model.training
    model.eval()
    with runtime.autocast():
        batches = [model(images.to(runtime.device)).float().cpu() for images in split.images.split(_BATCH_SIZE)]
    model.train(was_training)
    return torch.cat(batches).numpy()


def evaluate(model: OverlayModel, split: SplitData, runtime: Runtime) -> MultilabelScores:
    """Score a model on a split, by every rule of :mod:`overlaycaps.metrics.multilabel`."""
    return score(predict_logits(model, split, runtime), split.labels.cpu().numpy())
