"""What there is to choose from: models with their sizes and how they match, routings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from overlaycaps.report.format import format_count
from overlaycaps.report.matching import LayerRow, make_matching_table
from overlaycaps.report.table import Cell, Column, Report, Table


class NamedRow(Protocol):
    """What is listed of anything that has a name."""

    @property
    def name(self) -> str:
        """On the command line."""

    @property
    def summary(self) -> str:
        """In one line."""

    @property
    def reference(self) -> str:
        """Where it was published."""

    @property
    def parameters(self) -> int:
        """Trainable numbers in all."""


class ModelRow(NamedRow, Protocol):
    """What is listed of a model."""

    @property
    def layers(self) -> Sequence[LayerRow]:
        """From the image to the logits."""


class RoutingRow(NamedRow, Protocol):
    """What is listed of a routing."""

    @property
    def iterations(self) -> int:
        """Passes by default."""


_NAME = Column("name", "name")
_PARAMETERS = Column("parameters", "parameters", "right")
_SUMMARY = Column("summary", "summary", wraps=True)
_REFERENCE = Column("reference", "reference", wraps=True)


def list_models(size: str, models: Sequence[ModelRow]) -> Report:
    """Return the models with their parameters at a size, and the matching table of those that match."""
    title = f"Models at size {size}"
    rows = tuple(
        (
            Cell(model.name, model.name),
            Cell(format_count(model.parameters), model.parameters),
            Cell(model.summary, model.summary),
            Cell(model.reference, model.reference),
        )
        for model in models
    )
    groups: dict[tuple[int, ...], list[ModelRow]] = {}
    for model in models:
        groups.setdefault(tuple(layer.neurons for layer in model.layers), []).append(model)
    matching = [
        make_matching_table("Matching, layer by layer", [(model.name, model.layers) for model in group])
        for group in groups.values()
        if len(group) > 1
    ]
    return Report(title, (Table(title, (_NAME, _PARAMETERS, _SUMMARY, _REFERENCE), rows), *matching), ())


def list_routings(size: str, routings: Sequence[RoutingRow]) -> Report:
    """Return the routings with the passes that a run makes by default and a capsule model's parameters at a size."""
    title = f"Routings, in the model caps at size {size}"
    columns = (_NAME, Column("iterations", "passes by default", "right"), _PARAMETERS, _SUMMARY, _REFERENCE)
    rows = tuple(
        (
            Cell(routing.name, routing.name),
            Cell(str(routing.iterations), routing.iterations),
            Cell(format_count(routing.parameters), routing.parameters),
            Cell(routing.summary, routing.summary),
            Cell(routing.reference, routing.reference),
        )
        for routing in routings
    )
    return Report(title, (Table(title, columns, rows),), ())
