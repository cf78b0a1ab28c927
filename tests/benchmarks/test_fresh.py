"""The cost that is printed for fresh overlays is that of the rounds."""

from __future__ import annotations

import pytest
import torch

from benchmarks import fresh
from benchmarks.measure import Timing
from tests.train.test_feed import CountingSplit


def test_costs_are_taken_round_by_round() -> None:
    file = Timing((1.0, 2.0, 4.0, 1.0, 1.0))
    costly = Timing((1.02, 2.04, 4.08, 1.5, 0.9))
    row = fresh.format_row("caps, fp32", {"file": file, "fresh": costly})
    assert row == ["caps, fp32", "1024", "683", "**+2.0 %** (-4.0 to +26.0)", "+5 %"]


def test_both_ways_take_the_same_steps_on_new_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        num_steps += 1

    monkeypatch.setattr(fresh, "make_step", lambda case: step)
    splits = {"file": CountingSplit(True), "fresh": CountingSplit(False)}
    monkeypatch.setattr(CountingSplit, "__len__", lambda split: 4096)
    monkeypatch.setattr(CountingSplit, "draw", lambda split, epoch, positions: (positions, torch.zeros(len(positions))))
    timings = fresh.time_steps("caps", "fp32", splits, rounds=3)
    assert [timing.n for timing in timings.values()] == [3, 3]
    assert num_steps == 2 * (3 + 2) * fresh.NUM_STEPS
