"""What a protocol is: a named set of defaults for a dataset's choices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """Named defaults; each can be overridden in an `OverlaySpec`.

    Attributes:
        name: what a user types.
        summary: one line for a help text.
        reference: the publication that the choices come from.
        single_fraction: probability that a sample shows one digit instead of two.
        max_shift_px: each digit is shifted by an integer uniform in [-max_shift_px, max_shift_px], in y and
            in x.
        canvas_px: height and width of a sample.
        merge: how overlaid digits become one image, a name in `data_gen.merging.MERGES`.
    """

    name: str
    summary: str
    reference: str
    single_fraction: float
    max_shift_px: int
    canvas_px: int
    merge: str
