"""Whether two models may be compared: the same layers with the same number of neurons each."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from overlaycaps.config import CapsuleConfig
from overlaycaps.models import MODELS, build_model
from overlaycaps.models.base import LayerInfo


@dataclass(frozen=True)
class ModelSummary:
    """A model at a size, without its weights."""

    name: str
    summary: str
    parameters: int
    layers: tuple[LayerInfo, ...]

    @property
    def neurons(self) -> tuple[int, ...]:
        """Neurons of each layer, in order."""
        return tuple(layer.neurons for layer in self.layers)


def summarize_model(name: str, config: CapsuleConfig) -> ModelSummary:
    """Count a model's layers, neurons and parameters; its weights are never allocated."""
    with torch.device("meta"):
        model = build_model(name, config)
    return ModelSummary(name, MODELS[name].summary, model.count_parameters(), tuple(model.describe_layers()))


def summarize_models(config: CapsuleConfig) -> list[ModelSummary]:
    """Summarize every model of the table that accepts the configuration."""
    return [summarize_model(name, config) for name in MODELS]
