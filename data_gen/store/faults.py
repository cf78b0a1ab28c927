"""What can be wrong with a file, in words."""

from __future__ import annotations

from dataclasses import dataclass

AGAIN = "generate the file again"
HDF5_ERRORS = (OSError, RuntimeError, KeyError, TypeError, ValueError, OverflowError, UnicodeError)
"""What h5py raises on a damaged file."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file, what to do about it, and in which dataset or group of it, if in one."""

    what: str
    remedy: str = AGAIN
    where: str = ""

    def __str__(self) -> str:
        """Return both."""
        return f"{self.what}; {self.remedy}"


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, for HDF5 has many."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
