"""How fast samples are read from the file, in order and shuffled, one by one and in batches.

    python -m benchmarks.reading [--rounds 7]

Every round reads every training sample once in each way, through :class:`overlaycaps.OverlayDataset` in this process.
The file lies in the system's cache of files, as it does from the second epoch on.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Timing, describe_machine, format_markdown, ratio, time_interleaved
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps import OverlayDataset

NUM_SAMPLES = 20_000
BATCH_SIZE = 64
FIELDS = ("images", "labels")


def time_reading(dataset: OverlayDataset, rounds: int) -> dict[str, Timing]:
    """Time epochs, by order and by how many samples are asked for at once."""
    num = len(dataset)
    orders = {"in order": np.arange(num), "shuffled": np.random.default_rng(0).permutation(num)}

    def read_each(order: NDArray[np.int64]) -> None:
        for index in order:
            dataset[int(index)]

    def read_batches(order: NDArray[np.int64]) -> None:
        for start in range(0, num, BATCH_SIZE):
            dataset.__getitems__(order[start : start + BATCH_SIZE].tolist())

    cases: dict[str, Callable[[], object]] = {}
    for name, order in orders.items():
        cases[f"one by one, {name}"] = partial(read_each, order)
        cases[f"batches of {BATCH_SIZE}, {name}"] = partial(read_batches, order)
    return time_interleaved(cases, rounds)


def format_reading(timings: dict[str, Timing], num_samples: int) -> str:
    """Return a table of samples per second, and how much longer a shuffled epoch takes."""
    rows = []
    for name in ("one by one", f"batches of {BATCH_SIZE}"):
        ordered, shuffled = timings[f"{name}, in order"], timings[f"{name}, shuffled"]
        cost = ratio(shuffled, ordered)
        speeds = [f"{num_samples / timing.median_s:,.0f}" for timing in (ordered, shuffled)]
        rows.append([name, *speeds, f"**{cost.median:.2f}** ({cost.low:.2f} to {cost.high:.2f})", "below 2"])
    header = ["reading", "in order, samples/s", "shuffled, samples/s", "shuffled / in order, time", "aim"]
    return format_markdown(header, rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds: int = parser.parse_args().rounds
    print(f"{describe_machine()}; {rounds} rounds of {NUM_SAMPLES:,} samples, images and labels.\n")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "data.h5")
        write_dataset(path, make_spec(num_train=NUM_SAMPLES, num_valid=1, num_test=1), load_bundled())
        print(format_reading(time_reading(OverlayDataset(path, fields=FIELDS), rounds), NUM_SAMPLES))


if __name__ == "__main__":
    main()
