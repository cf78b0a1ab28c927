"""An overlay the slow way: pixel by pixel, in plain integers. What the package draws is held against it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_gen.spec import OverlaySpec


def render(
    spec: OverlaySpec, digits: Sequence[NDArray[np.uint8]], shifts: Sequence[Sequence[int]]
) -> tuple[list[list[int]], float]:
    """Return the image of some digits, each shifted by (dy, dx), and its overlap."""
    side = spec.canvas_px
    corner = (side - spec.digit_px) // 2
    layers = [[[0] * side for _ in range(side)] for _ in digits]
    for layer, digit, (dy, dx) in zip(layers, digits, shifts, strict=True):
        for y in range(spec.digit_px):
            for x in range(spec.digit_px):
                layer[corner + dy + y][corner + dx + x] = int(digit[y, x])
    image = [[0] * side for _ in range(side)]
    several = any_ink = 0
    for y in range(side):
        for x in range(side):
            values = [layer[y][x] for layer in layers]
            image[y][x] = {
                "clip": min(sum(values), 255),
                "max": max(values),
                "mean": int(sum(values) / len(values) + 0.5),
            }[spec.merge]
            several += sum(value > 0 for value in values) > 1
            any_ink += max(values) > 0
    return image, several / max(any_ink, 1)
