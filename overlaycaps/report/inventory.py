"""The list of models with their sizes, and how they match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from overlaycaps.report.format import format_count
from overlaycaps.report.matching import LayerRow, make_matching_table
from overlaycaps.report.table import Cell, Column, Report, Table


class ModelRow(Protocol):
    """What is listed of a model."""

    @property
    def name(self) -> str:
        """On the command line."""

    @property
    def summary(self) -> str:
        """In one line."""

    @property
    def parameters(self) -> int:
        """Trainable numbers in all."""

    @property
    def layers(self) -> Sequence[LayerRow]:
        """From the image to the logits."""


def list_models(size: str, models: Sequence[ModelRow]) -> Report:
    """Return the models with their parameters at a size, and the matching table of those that match."""
    listing = Table(
        f"Models at size {size}",
        (
            Column("model", "model"),
            Column("parameters", "parameters", "right"),
            Column("summary", "summary", wraps=True),
        ),
        tuple(
            (
                Cell(model.name, model.name),
                Cell(format_count(model.parameters), model.parameters),
                Cell(model.summary, model.summary),
            )
            for model in models
        ),
    )
    groups: dict[tuple[int, ...], list[ModelRow]] = {}
    for model in models:
        groups.setdefault(tuple(layer.neurons for layer in model.layers), []).append(model)
    matching = [
        make_matching_table("Matching, layer by layer", [(model.name, model.layers) for model in group])
        for group in groups.values()
    ]
    return Report(f"Models at size {size}", (listing, *matching), ())
