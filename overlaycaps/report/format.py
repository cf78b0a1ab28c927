"""How figures are written, everywhere the same."""

from __future__ import annotations


def format_percent(share: float) -> str:
    """Return a share of 1 as a percentage with two decimals: 3/7 -> ``42.86 %``."""
    return f"{share * 100:.2f} %"


def format_range(low: float, high: float) -> str:
    """Return two shares of 1 as ``71.20 to 72.96``, in percent."""
    return f"{low * 100:.2f} to {high * 100:.2f}"


def format_count(number: int) -> str:
    """Return a whole number with its thousands set apart: ``42,478,017``."""
    return f"{number:,}"


def format_duration(seconds: float) -> str:
    """Return a duration as ``42 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_shape(shape: tuple[int, ...] | list[int]) -> str:
    """Return a shape as ``64x18x18``."""
    return "x".join(str(size) for size in shape)


def escape_controls(message: str) -> str:
    """Return the message as one line that moves no cursor: a file may be named with line breaks and escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
