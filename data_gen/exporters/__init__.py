"""The table of exporters. To add one: a new module with a function `export`, and its row here."""

from __future__ import annotations

from data_gen.errors import name_error
from data_gen.exporters.base import Exporter

__all__ = ["EXPORTERS", "Exporter", "get_exporter"]

NPZ = Exporter(
    name="npz",
    summary="one file of arrays, which numpy.load reads",
    ending=".npz",
    module="data_gen.exporters.npz",
)
PNG = Exporter(
    name="png",
    summary="a folder of PNG images, with a table of their labels (CSV) for each split",
    ending="-png",
    module="data_gen.exporters.png",
)

EXPORTERS: dict[str, Exporter] = {exporter.name: exporter for exporter in (NPZ, PNG)}


def get_exporter(name: str) -> Exporter:
    """Return the exporter called `name`.

    Raises:
        DataError: no exporter has this name; the message lists those that exist and suggests the nearest.
    """
    if name not in EXPORTERS:
        raise name_error("--to", name, EXPORTERS)
    return EXPORTERS[name]
