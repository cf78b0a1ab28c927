"""What a look at a data file found, as a neutral report and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from overlaycaps.report.format import format_count, format_percent
from overlaycaps.report.table import Cell, Column, Report, Table
from overlaycaps.schemas import INSPECTION_SCHEMA, INSPECTION_VERSION

Content = Mapping[str, Any]


def describe_inspection(content: Content) -> dict[str, Any]:
    """Return what was found as plain data with a versioned schema."""
    return {"schema": INSPECTION_SCHEMA, "schema_version": INSPECTION_VERSION, **content}


def report_inspection(content: Content) -> Report:
    """Return the spec, counts, balances, histogram of overlaps and digests as tables; the faults as notes."""
    tables = []
    spec = content["spec"]
    if spec is not None:
        tables += [_list_choices(content, spec)]
    splits: Mapping[str, Content] = content["splits"]
    if splits and spec is not None:
        tables += [_count_digits(splits), _count_classes(splits, spec["class_names"]), _count_overlaps(splits)]
    num_faults = len(content["faults"])
    notes = [f"fault {number} of {num_faults}: {fault}" for number, fault in enumerate(content["faults"], start=1)]
    if not notes:
        notes = [
            "No fault: structure, storage and links; every sample against its labels, its digits and the draw of its "
            "seed; the digests of all blocks and of the whole."
        ]
    return Report(f"{content['path']}", tuple(tables), tuple(notes))


def _list_choices(content: Content, spec: Content) -> Table:
    size = f"{content['size_bytes'] / 2**20:.1f} MiB"
    values = {
        "shard": content["shard"],
        "parts": ", ".join(content["parts"]) or "none",
        **{name: _show(value) for name, value in spec.items()},
        "digit source": content["digit_source"],
        "digit source digest": content["digit_source_digest"],
        "content digest": content["content_digest"],
    }
    rows = [("file", content["path"]), ("size", size), *values.items()]
    return Table(
        "File and spec",
        (Column("name", "name"), Column("value", "value", wraps=True)),
        tuple((Cell(name, name), Cell(str(value), value)) for name, value in rows),
    )


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(_show(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _count_digits(splits: Mapping[str, Content]) -> Table:
    most = max(len(split["by_count"]) for split in splits.values())
    columns = [
        Column("split", "split"),
        Column("num_samples", "samples", "right"),
        Column("num_digits", "source digits", "right"),
        *(Column(f"count_{n}", f"{n} digit{'s' if n > 1 else ''}", "right") for n in range(1, most + 1)),
        Column("mean_overlap", "mean overlap", "right"),
    ]
    rows = []
    for name, split in splits.items():
        mean = split["mean_overlap"]
        rows.append(
            (
                Cell(name, name),
                Cell(format_count(split["num_samples"]), split["num_samples"]),
                Cell(format_count(split["num_digits"]), split["num_digits"]),
                *(_share(number, split["num_samples"]) for number in split["by_count"]),
                Cell("-" if mean is None else f"{mean:.3f}", mean),
            )
        )
    return Table("Samples by number of digits", tuple(columns), tuple(rows))


def _count_classes(splits: Mapping[str, Content], names: list[str]) -> Table:
    columns = [Column("class", "class"), *(Column(name, name, "right") for name in splits)]
    rows = [
        (
            Cell(name, name),
            *(_share(split["by_class"][number], split["num_samples"]) for split in splits.values()),
        )
        for number, name in enumerate(names)
    ]
    return Table("Samples that show each class", tuple(columns), tuple(rows))


def _count_overlaps(splits: Mapping[str, Content]) -> Table:
    columns = [Column("overlap", "overlap"), *(Column(name, name, "right") for name in splits)]
    num_bins = max(len(split["by_overlap"]) for split in splits.values())
    rows = []
    for number in range(num_bins):
        label = f"{number / num_bins:.1f} to {(number + 1) / num_bins:.1f}"
        cells = (_share(split["by_overlap"][number], sum(split["by_overlap"])) for split in splits.values())
        rows.append((Cell(label, number / num_bins), *cells))
    return Table("Overlays by overlap", tuple(columns), tuple(rows))


def _share(number: int, total: int) -> Cell:
    text = f"{format_count(number)} ({format_percent(number / total)})" if total else "-"
    return Cell(text, number)
