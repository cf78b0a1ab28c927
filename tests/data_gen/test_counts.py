"""How many digits: what is typed, what is chosen, what is refused."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from data_gen.counts import choose_count_weights, parse_count_weights
from data_gen.errors import DataError


def test_weights_are_read_exactly() -> None:
    assert parse_count_weights("1:1/6,2:5/6") == {1: Fraction(1, 6), 2: Fraction(5, 6)}
    assert parse_count_weights("2:0.1, 4: 3") == {2: Fraction(1, 10), 4: Fraction(3)}


@pytest.mark.parametrize(
    "text", ["", "1", "1:", ":1", "a:1", "1:a", "1:1/0", "1:1,,2:1", "1:1;2:1", "1:" + "9" * 200, "1:nan"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"--count-weights .* is no weight; write COUNT:WEIGHT,COUNT:WEIGHT") as caught:
        parse_count_weights(text)
    assert len(str(caught.value)) < 300


def test_a_number_named_twice_is_refused() -> None:
    with pytest.raises(DataError, match="2 digits are named twice"):
        parse_count_weights("2:1,1:1,2:3")


@pytest.mark.parametrize(
    ("single_fraction", "max_digits", "weights", "expected"),
    [
        (None, None, None, (0.25, 0.75)),
        (0.5, None, None, (0.5, 0.5)),
        (1, None, None, (1.0, 0.0)),
        (None, 1, None, (1.0,)),
        (1, 1, None, (1.0,)),
        (None, 4, None, (0.25, 0.25, 0.25, 0.25)),
        (0.1, 3, None, (0.1, 0.45, 0.45)),
        (None, None, {1: 1, 2: 5}, (1 / 6, 5 / 6)),
        (None, None, {1: Fraction(1, 6), 2: Fraction(5, 6)}, (1 / 6, 5 / 6)),
        (None, None, {3: 7}, (0.0, 0.0, 1.0)),
        (None, 4, {2: 1, 1: 1}, (0.5, 0.5, 0.0, 0.0)),
    ],
)
def test_choices_become_probabilities(single_fraction: Any, max_digits: Any, weights: Any, expected: Any) -> None:
    assert choose_count_weights(0.25, single_fraction, max_digits, weights) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("single_fraction", "max_digits", "weights", "message"),
    [
        (0.5, None, {1: 1}, "--single-fraction and --count-weights exclude each other"),
        (0.5, 1, None, "--single-fraction 0.5: with --max-digits 1 it is 1"),
        (1.5, None, None, "--single-fraction 1.5 is out of range; use 0 to 1"),
        (float("nan"), None, None, "--single-fraction nan is out of range"),
        ("half", None, None, "--single-fraction must be a number, not 'half'"),
        (None, 0, None, "--max-digits 0 is out of range; use 1 to 4"),
        (None, 5, None, "--max-digits 5 is out of range"),
        (None, True, None, "--max-digits True is out of range"),
        (None, 2, {3: 1}, "--max-digits 2 is less than the 3 digits of --count-weights"),
        (None, None, {0: 1}, "--count-weights: 0 digits are out of range; use 1 to 4"),
        (None, None, {5: 1}, "--count-weights: 5 digits are out of range"),
        (None, None, {1: -1, 2: 3}, "--count-weights: the weight of 1 digits is -1; use 0 or more"),
        (None, None, {1: float("inf")}, "the weight of 1 digits is inf"),
        (None, None, {1: float("nan")}, "the weight of 1 digits is nan"),
        (None, None, {1: 0, 2: 0}, "--count-weights: every weight is 0"),
        (None, None, {}, "--count-weights: every weight is 0"),
    ],
)
def test_choices_that_do_not_fit_are_refused(single_fraction: Any, max_digits: Any, weights: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        choose_count_weights(0.25, single_fraction, max_digits, weights)
    assert message in str(caught.value)
