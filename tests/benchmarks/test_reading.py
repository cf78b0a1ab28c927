"""The speeds that are printed for reading are those of the rounds, and every sample is read in each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import reading
from benchmarks.measure import Timing
from overlaycaps import OverlayDataset


def test_speeds_and_ratios_are_those_of_the_rounds() -> None:
    timings = {
        f"{way}, {order}": Timing(seconds)
        for way in ("one by one", "batches of 64")
        for order, seconds in (("in order", (1.0, 2.0, 1.0)), ("shuffled", (1.5, 2.0, 1.2)))
    }
    rows = reading.format_reading(timings, 3000).splitlines()[2:]
    assert rows == [
        f"| {way} | 3,000 | 2,000 | **1.20** (1.00 to 1.50) | below 2 |" for way in ("one by one", "batches of 64")
    ]


def test_every_sample_is_read_in_every_way(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    read = OverlayDataset.__getitems__

    def remember(dataset: OverlayDataset, indices: list[int]) -> list[Any]:
        asked.extend(indices)
        return read(dataset, indices)

    monkeypatch.setattr(OverlayDataset, "__getitems__", remember)
    timings = reading.time_reading(OverlayDataset(tiny_data), rounds=1)
    assert len(timings) == 4
    assert sorted(asked) == sorted(list(range(96)) * 4 * 2)  # one round to warm up
