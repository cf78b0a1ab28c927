"""Errors about data that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataError(ValueError):
    """A one-line message that names the file or option, says what is wrong with it, and what to do."""


def name_error(option: str, name: object, known: Iterable[str]) -> DataError:
    """Return the error for a `name` that is none of `known`, with the nearest known name suggested."""
    names = list(known)
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}? Choose" if nearest else "choose"
    return DataError(f"{option} {str(name)[:80]!r} is unknown; {hint} from: {', '.join(names)}")


def show_value(value: object) -> str:
    """Return a value that someone gave, as a message shows it: short, whatever it is."""
    # str() of an int of thousands of digits raises, and a hostile value could fill the screen.
    if type(value) is int and value.bit_length() > 256:
        return "(a number of more than 256 bits)"
    try:
        text = repr(value)
    except RecursionError:
        return "(something nested too deep)"
    return text if len(text) <= 80 else text[:77] + "..."
