"""What models count without their weights being made: layers, neurons, parameters, and so which of them match."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from overlaycaps.config import CapsuleConfig
from overlaycaps.models import MODELS, build_model
from overlaycaps.models.base import LayerInfo
from overlaycaps.routing import ROUTINGS


@dataclass(frozen=True)
class ModelSummary:
    """A model at a size, without its weights."""

    name: str
    summary: str
    reference: str
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
    row = MODELS[name]
    return ModelSummary(name, row.summary, row.reference, model.count_parameters(), tuple(model.describe_layers()))


def summarize_models(config: CapsuleConfig) -> list[ModelSummary]:
    """Summarize every model of the table that accepts the configuration."""
    return [summarize_model(name, config) for name in MODELS]


@dataclass(frozen=True)
class RoutingSummary:
    """A routing in a capsule model with vector poses.

    Attributes:
        name: on the command line.
        summary: in one line.
        reference: its source.
        iterations: passes that a run makes by default.
        parameters: of the whole model.
    """

    name: str
    summary: str
    reference: str
    iterations: int
    parameters: int


def summarize_routings(config: CapsuleConfig) -> list[RoutingSummary]:
    """Count a capsule model's parameters and passes with every routing of the table."""
    summaries = []
    for name, row in ROUTINGS.items():
        with torch.device("meta"):
            model = build_model("caps", replace(config, routing=name))
        iterations = model.describe_routing()["routing_iterations"]
        summaries.append(RoutingSummary(name, row.summary, row.reference, iterations, model.count_parameters()))
    return summaries
