"""What the commands about data files share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data_gen.store.write import DatasetInfo


def describe_dataset(info: DatasetInfo) -> str:
    """Return one line about a data file that was written, or was there already."""
    from data_gen.sharding import WHOLE
    from data_gen.spec import SPLITS
    from data_gen.store.format import count_rows

    spec = info.spec
    train, valid, test = (count_rows(spec, split, info.shard) for split in SPLITS)
    where = "" if info.shard == WHOLE else f" of shard {info.shard}"
    state = "is there already: " if info.was_there else ""
    return (
        f"{info.path}: {state}{train:,} training, {valid:,} validation and {test:,} test samples{where} "
        f"({spec.protocol}, {spec.canvas_px}x{spec.canvas_px}, {info.size_bytes / 2**20:.0f} MiB)"
    )
