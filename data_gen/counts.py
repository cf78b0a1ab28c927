"""How many digits a sample shows: the choice of a distribution over 1, 2, ... K."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from data_gen.errors import DataError, show_value

MAX_DIGITS = 4
"""Most digits that a sample can show."""

Weight: TypeAlias = "float | Fraction"
"""A probability, up to a factor that all weights share."""

_HUGE = re.compile(r"e[+-]?\d{3}", re.IGNORECASE)
"""An exponent whose power would take long to work out, and is no weight that anyone means."""

_FORM = "write COUNT:WEIGHT,COUNT:WEIGHT, as in 1:1/6,2:5/6"


def parse_count_weights(text: str) -> dict[int, Fraction]:
    """Return the weights in a text such as `1:1/6,2:5/6`, from the number of digits to its weight.

    Raises:
        DataError: the text has another form, or names a number of digits twice.
    """
    weights: dict[int, Fraction] = {}
    for part in text.split(","):
        count_text, colon, weight_text = part.partition(":")
        try:
            if not colon or len(part) > 100 or _HUGE.search(weight_text):
                raise ValueError
            count, weight = int(count_text), Fraction(weight_text.strip())
        except (ValueError, ZeroDivisionError):
            raise DataError(f"--count-weights {show_value(text)}: {show_value(part)} is no weight; {_FORM}") from None
        if count in weights:
            raise DataError(f"--count-weights {show_value(text)}: {count} digits are named twice; name them once")
        weights[count] = weight
    return weights


def choose_count_weights(
    default_single: float,
    single_fraction: float | None,
    max_digits: int | None,
    weights: Mapping[int, Weight] | None,
) -> tuple[float, ...]:
    """Return the probabilities of 1, 2, ... K digits.

    Args:
        default_single: share of samples with one digit, where nothing else is asked for.
        single_fraction: the share that was asked for.
        max_digits: K that was asked for; by default the largest number in `weights`, or else 2. More than that
            leaves places that are never filled.
        weights: from number of digits to its weight, of any sum; None: 2 to K digits share equally what
            singles leave.

    Raises:
        DataError: choices exclude each other, or are out of range.
    """
    if max_digits is not None and (type(max_digits) is not int or not 1 <= max_digits <= MAX_DIGITS):
        raise DataError(f"--max-digits {show_value(max_digits)} is out of range; use 1 to {MAX_DIGITS}")
    if weights is None:
        return _share_equally(default_single, single_fraction, max_digits)
    if single_fraction is not None:
        raise DataError("--single-fraction and --count-weights exclude each other; give one of them")
    for count, weight in weights.items():
        if not 1 <= count <= MAX_DIGITS:
            raise DataError(f"--count-weights: {count} digits are out of range; use 1 to {MAX_DIGITS}")
        if not 0 <= weight < float("inf"):
            raise DataError(f"--count-weights: the weight of {count} digits is {float(weight):g}; use 0 or more")
    total = sum(Fraction(weight) for weight in weights.values())
    if total == 0:
        raise DataError("--count-weights: every weight is 0; give one above 0")
    most = max(weights)
    if max_digits is not None and max_digits < most:
        raise DataError(f"--max-digits {max_digits} is less than the {most} digits of --count-weights; leave it out")
    # Exact until the end: 1:1,2:5 and 1:1/6,2:5/6 are the same choice, and give the same file.
    return tuple(float(Fraction(weights.get(count, 0)) / total) for count in range(1, (max_digits or most) + 1))


def _share_equally(default_single: float, single_fraction: float | None, max_digits: int | None) -> tuple[float, ...]:
    if max_digits == 1:
        if single_fraction not in (None, 1):
            raise DataError(f"--single-fraction {single_fraction}: with --max-digits 1 it is 1; leave it out")
        return (1.0,)
    single = default_single if single_fraction is None else single_fraction
    if type(single) not in (int, float):
        raise DataError(f"--single-fraction must be a number, not {show_value(single)}")
    if not 0 <= single <= 1:
        raise DataError(f"--single-fraction {show_value(single)} is out of range; use 0 to 1")
    others = (max_digits or 2) - 1
    return (float(single), *[(1 - single) / others] * others)
