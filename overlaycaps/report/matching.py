"""The matching table: layer by layer, what models have in common and what each pays for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from overlaycaps.report.format import format_count, format_shape
from overlaycaps.report.table import Cell, Column, Table


class LayerRow(Protocol):
    """A layer as every model describes it."""

    @property
    def layer(self) -> str:
        """What the layer does."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its output, without the batch."""

    @property
    def neurons(self) -> int:
        """Numbers in the output."""

    @property
    def parameters(self) -> int:
        """Trainable numbers."""


def make_matching_table(title: str, models: Sequence[tuple[str, Sequence[LayerRow]]]) -> Table:
    """Return one row per layer: shape, neurons, and the parameters of each model.

    Args:
        title: of the table.
        models: name and layers of each; all have the same layers with the same neurons.

    Raises:
        ValueError: if they have not: such models must not stand in one matching table.
    """
    first = models[0][1]
    for _, layers in models:
        if [layer.neurons for layer in layers] != [layer.neurons for layer in first]:
            raise ValueError("models with different neurons per layer are not matched")
    columns = (
        Column("layer", "layer"),
        Column("shape", "shape"),
        Column("neurons", "neurons", "right"),
        *(Column(f"parameters_{name}", f"parameters {name}", "right") for name, _ in models),
    )
    rows = []
    for index, layer in enumerate(first):
        counts = [layers[index].parameters for _, layers in models]
        rows.append(
            (
                Cell(layer.layer, layer.layer),
                Cell(format_shape(layer.shape), list(layer.shape)),
                Cell(format_count(layer.neurons), layer.neurons),
                *(Cell(format_count(count), count) for count in counts),
            )
        )
    totals = [sum(layer.parameters for layer in layers) for _, layers in models]
    neurons = sum(layer.neurons for layer in first)
    rows.append(
        (
            Cell("total", "total"),
            Cell("", None),
            Cell(format_count(neurons), neurons),
            *(Cell(format_count(total), total) for total in totals),
        )
    )
    return Table(title, columns, tuple(rows))
