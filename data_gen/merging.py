"""How the layers of a sample, one per digit, become one image.

`clip` is the default. With `mean`, single digits keep full brightness and overlaid ones are halved, so
brightness alone gives the digit count away; a network can then count without reading.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from data_gen.errors import name_error

Merge = Callable[[NDArray[np.uint8], NDArray[np.int64]], NDArray[np.uint8]]


def merge_by_clip(layers: NDArray[np.uint8], num_digits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Clipped sum, min(a + b, 255), as in the released script of Sabour et al. 2017.

    Args:
        layers: uint8 (K, N, H, W), zero where a digit is absent.
        num_digits: (N,), how many of the K layers hold a digit; unused here.

    Returns:
        uint8 (N, H, W).
    """
    merged: NDArray[np.uint8] = layers[0].copy()
    for layer in layers[1:]:
        merged += np.minimum(layer, 255 - merged)  # stays in uint8: no wider copy of the block
    return merged


def merge_by_max(layers: NDArray[np.uint8], num_digits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Pixelwise maximum, max(a, b): the brighter stroke hides the other. Arguments as for `merge_by_clip`."""
    merged: NDArray[np.uint8] = layers.max(axis=0)
    return merged


def merge_by_mean(layers: NDArray[np.uint8], num_digits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Mean over the digits present, halves rounded up; a single digit keeps its full brightness.

    Leaks the digit count through brightness (see the module's docstring). Arguments as for `merge_by_clip`.
    """
    present = np.maximum(num_digits, 1).astype(np.uint16)[:, None, None]
    total = layers.sum(axis=0, dtype=np.uint16)
    merged: NDArray[np.uint8] = ((2 * total + present) // (2 * present)).astype(np.uint8)
    return merged


MERGES: dict[str, Merge] = {"clip": merge_by_clip, "max": merge_by_max, "mean": merge_by_mean}


def get_merge(name: str) -> Merge:
    """Return the merge called `name`.

    Raises:
        DataError: no merge has this name; the message lists those that exist and suggests the nearest.
    """
    if name not in MERGES:
        raise name_error("--merge", name, MERGES)
    return MERGES[name]
