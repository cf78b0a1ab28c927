"""The range of overlaps that is asked for, as it is typed."""

from __future__ import annotations

from data_gen.errors import DataError, show_value


def parse_overlap(text: str) -> tuple[float, float]:
    """Return the least and the largest overlap in a text such as `0.2:0.5`; an end that is left out is 0 or 1.

    Raises:
        DataError: the text has another form.
    """
    low_text, colon, high_text = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return float(low_text or 0), float(high_text or 1)
    except ValueError:
        raise DataError(f"--overlap {show_value(text)}: write MIN:MAX, as in 0.2:0.5; 0.2: stands for 0.2:1") from None
