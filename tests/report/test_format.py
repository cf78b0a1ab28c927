"""How figures are written."""

from __future__ import annotations

import pytest

from overlaycaps.report.format import format_count, format_duration, format_percent, format_range, format_shape


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (512.3, "8 min 32 s"),
        (3599.7, "1 h 00 min"),
        (7625, "2 h 07 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_shares_counts_and_shapes() -> None:
    assert format_percent(3 / 7) == "42.86 %"
    assert format_percent(0) == "0.00 %"
    assert format_percent(1) == "100.00 %"
    assert format_range(0.71199, 0.7296) == "71.20 to 72.96"
    assert format_count(42_478_017) == "42,478,017"
    assert format_shape((64, 18, 18)) == "64x18x18"
