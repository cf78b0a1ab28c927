"""From digits and shifts to an image: a sample's layers, their merge and their overlap. No random numbers here."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.merging import get_merge
from data_gen.spec import OverlaySpec

ABSENT = -1
"""In `digits` and `source_index`, where a sample shows fewer than K digits."""


def paste_layers(
    spec: OverlaySpec, pool: DigitPool, source_index: NDArray[np.integer], offset_px: NDArray[np.integer]
) -> NDArray[np.uint8]:
    """Return each digit of N samples alone on its canvas.

    Args:
        spec: canvas and digit size.
        pool: the digits.
        source_index: (N, K), rows of the pool; -1 where absent.
        offset_px: (N, K, 2), shift (dy, dx) of each digit from the centre, within the spec's bounds.

    Returns:
        uint8 (K, N, H, W), zero where a digit is absent.
    """
    num_samples, num_places = source_index.shape
    layers = np.zeros((num_places, num_samples, spec.canvas_px, spec.canvas_px), np.uint8)
    windows = sliding_window_view(layers, (spec.digit_px, spec.digit_px), axis=(2, 3), writeable=True)
    corners = offset_px.astype(np.int64) + (spec.canvas_px - spec.digit_px) // 2
    place, sample = np.nonzero(source_index.T != ABSENT)
    corner = corners[sample, place]
    windows[place, sample, corner[:, 0], corner[:, 1]] = pool.images[source_index[sample, place]]
    return layers


def merge_layers(spec: OverlaySpec, layers: NDArray[np.uint8], num_digits: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the images, uint8 (N, H, W), that layers (K, N, H, W) with `num_digits` (N,) digits make."""
    return get_merge(spec.merge)(layers, num_digits.astype(np.int64))


def measure_overlap(layers: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return, for layers (K, N, H, W), the share of the inked pixels that two digits or more ink, float32 (N,).

    Ink is a value above 0. Where nothing is inked, and for single digits, the overlap is 0.
    """
    num_places, num_samples, height_px, width_px = layers.shape
    inked = (layers > 0).reshape(num_places, num_samples, height_px * width_px)
    once = inked[0]
    twice = np.zeros_like(once)
    for layer in inked[1:]:
        twice |= once & layer
        once = once | layer
    # Summed as bytes: adding bools takes twice as long. 256 x 256 pixels of 1 need 17 bits.
    both = twice.view(np.uint8).sum(axis=1, dtype=np.uint32)
    either = once.view(np.uint8).sum(axis=1, dtype=np.uint32)
    overlap: NDArray[np.float32] = (both / np.maximum(either, 1)).astype(np.float32)
    return overlap
