"""Wilson's interval against published and hand-computed values."""

from __future__ import annotations

import pytest

from overlaycaps.metrics.intervals import wilson_interval


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [
        (50, 100, 0.4038, 0.5962),  # (0.5 + z^2/200 -/+ z sqrt(0.0025 + z^2/40000)) / (1 + z^2/100), z = 1.959964
        (0, 10, 0.0, 0.2775),  # z^2 / (10 + z^2)
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, Stat. Med. 17:857, table I, method 3
        (15, 148, 0.0624, 0.1605),  # the same
    ],
)
def test_known_intervals(correct: int, total: int, low: float, high: float) -> None:
    assert list(wilson_interval(correct, total)) == pytest.approx([low, high], abs=5e-5)


def test_right_and_wrong_are_mirror_images() -> None:
    low, high = wilson_interval(30, 100)
    assert list(wilson_interval(70, 100)) == pytest.approx([1 - high, 1 - low])


def test_more_confidence_is_wider_and_more_samples_narrower() -> None:
    def width(total: int, confidence: float) -> float:
        low, high = wilson_interval(total // 2, total, confidence)
        return high - low

    assert width(100, 0.99) > width(100, 0.95) > width(1000, 0.95)


@pytest.mark.parametrize(("correct", "total", "confidence"), [(1, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0)])
def test_what_is_no_proportion_is_refused(correct: int, total: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"no proportion|not between"):
        wilson_interval(correct, total, confidence)
