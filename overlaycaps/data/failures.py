"""Errors of every origin as the user's: one line, and an exit code."""

from __future__ import annotations

from data_gen.errors import DataError
from overlaycaps.errors import UserError
from overlaycaps.files import describe_failure


def explain_failure(error: BaseException) -> UserError | None:
    """Return an error as one that a user can act on, or None if it is a fault of the program."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, DataError):
        return UserError(str(error))
    if isinstance(error, OSError):
        return UserError(describe_failure(error))
    if _is_out_of_memory(error):
        return UserError("out of memory; choose a smaller --size, --batch-size or --canvas, or a larger --accumulate.")
    return None


def _is_out_of_memory(error: BaseException) -> bool:
    # torch's own errors are told by their text: the class for the CPU is RuntimeError, and torch may not be imported.
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in text or "not enough memory" in text)
    )
