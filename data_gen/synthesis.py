"""Samples as a pure function of (spec, digit pool, split, index); no files, no shared state.

Samples come in blocks of `BLOCK_SIZE`. Block b of split s draws from its own generator,

    Generator(Philox(SeedSequence(seed, spawn_key=(s, b)))),   s = 0, 1, 2 for train, valid, test,

one table of seven uniform numbers per sample, whatever their values: so any range of indices, drawn by any
worker in any order, gives the same samples. An integer below n is floor(n u), off uniform by less than n /
2^53; unlike NumPy's own bounded integers, the stream of u is fixed by the bit generator and does not change
with its version.

Indices may go beyond the number of samples in the spec: those are fresh samples of the same distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.merging import get_merge
from data_gen.spec import MAX_DIGITS, NUM_CLASSES, SPLITS, OverlaySpec, check_split

BLOCK_SIZE = 1024
"""Samples per random stream. Changing it changes every dataset."""

ABSENT = -1
"""In `digits` and `source_index`, where a sample shows one digit only."""


@dataclass(frozen=True, eq=False)
class SampleBlock:
    """N samples and where they come from; K = `MAX_DIGITS` places, of which the first is never empty.

    Attributes:
        images: uint8 (N, H, W).
        labels: uint8 (N, 10), multi-hot.
        digits: int8 (N, K), the class of each digit; -1 where absent.
        source_index: int32 (N, K), each digit's row in the split's pool; -1 where absent.
        offset_px: int8 (N, K, 2), shift (dy, dx) of each digit from the centre; 0 where absent.
        overlap: float32 (N,), pixels inked by both digits / pixels inked by either; ink is a value above 0. 0
            for single digits.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    digits: NDArray[np.int8]
    source_index: NDArray[np.int32]
    offset_px: NDArray[np.int8]
    overlap: NDArray[np.float32]

    def __len__(self) -> int:
        """Return N."""
        return len(self.images)


def synthesize(spec: OverlaySpec, pool: DigitPool, split: str, start: int, stop: int) -> SampleBlock:
    """Return the samples [start, stop) of `split`, drawn from `pool`.

    Whole blocks are computed and cut to the range: ranges that begin and end at multiples of `BLOCK_SIZE`
    waste nothing.

    Raises:
        DataError: unknown split, start or stop out of order, digits of another size than the spec's, or a
            pool of one class.
    """
    check_split(split)
    if not 0 <= start <= stop:
        raise DataError(f"there is no range of samples from {start} to {stop}; use 0 <= start <= stop")
    check_pool(spec, pool, split)
    samples = _allocate(spec, stop - start)
    for block in range(start // BLOCK_SIZE, -(-stop // BLOCK_SIZE)):
        first = block * BLOCK_SIZE
        low, high = max(start, first), min(stop, first + BLOCK_SIZE)
        if low == high:  # an empty range inside a block
            continue
        drawn = _synthesize_block(spec, pool, split, block)
        for field in fields(SampleBlock):
            getattr(samples, field.name)[low - start : high - start] = getattr(drawn, field.name)[
                low - first : high - first
            ]
    return samples


def check_pool(spec: OverlaySpec, pool: DigitPool, split: str) -> None:
    """Check that samples as `spec` wants them can be drawn from `pool`.

    Raises:
        DataError: the digits have another size, or are all of one class.
    """
    if pool.images.shape[1:] != (spec.digit_px, spec.digit_px):
        size = "x".join(str(length) for length in pool.images.shape[1:])
        raise DataError(
            f"the {split} digits have {size} px, but the spec is for digits of {spec.digit_px} px; adapt the spec"
        )
    if np.count_nonzero(np.diff(pool.class_start)) < 2:
        raise DataError(f"the {split} digits are all of one class; overlays need at least two")


def _allocate(spec: OverlaySpec, num_samples: int) -> SampleBlock:
    n, k, side = num_samples, MAX_DIGITS, spec.canvas_px
    return SampleBlock(
        images=np.zeros((n, side, side), np.uint8),
        labels=np.zeros((n, NUM_CLASSES), np.uint8),
        digits=np.full((n, k), ABSENT, np.int8),
        source_index=np.full((n, k), ABSENT, np.int32),
        offset_px=np.zeros((n, k, 2), np.int8),
        overlap=np.zeros(n, np.float32),
    )


def _synthesize_block(spec: OverlaySpec, pool: DigitPool, split: str, block: int) -> SampleBlock:
    """Draw one whole block."""
    stream = np.random.SeedSequence(spec.seed, spawn_key=(SPLITS.index(split), block))
    draws = np.random.Generator(np.random.Philox(stream)).random((3 + 2 * MAX_DIGITS, BLOCK_SIZE))

    present = np.ones((MAX_DIGITS, BLOCK_SIZE), bool)
    present[1] = draws[0] >= spec.single_fraction
    rows = _draw_rows(pool, draws[1], draws[2])
    shifts = _scale(draws[3:], 2 * spec.max_shift_px + 1) - spec.max_shift_px
    shifts = shifts.reshape(MAX_DIGITS, 2, BLOCK_SIZE) * present[:, None]  # (K, (dy, dx), N)

    layers = _paste(spec, pool, rows, shifts, present)
    digits = np.where(present, pool.labels[rows], ABSENT)
    labels = np.zeros((BLOCK_SIZE, NUM_CLASSES), np.uint8)
    for place in range(MAX_DIGITS):
        labels[present[place], digits[place, present[place]]] = 1
    return SampleBlock(
        images=get_merge(spec.merge)(layers, present.sum(axis=0)),
        labels=labels,
        digits=digits.T.astype(np.int8),
        source_index=np.where(present, rows, ABSENT).T.astype(np.int32),
        offset_px=shifts.transpose(2, 0, 1).astype(np.int8),
        overlap=_measure_overlap(layers),
    )


def _scale(draws: NDArray[np.float64], limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn uniform numbers in [0, 1) into integers in [0, limit)."""
    return (draws * limit).astype(np.int64)


def _draw_rows(
    pool: DigitPool, first_draws: NDArray[np.float64], second_draws: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return pool rows (2, N): the first uniform over all digits, the second over those of other classes.

    In the pool sorted by class, the first digit's class is one range; the second draw, uniform over what is
    left, skips it. So one draw is enough, and no pair is thrown away.
    """
    first = _scale(first_draws, len(pool.labels))
    first_class = pool.labels[first]
    class_begin = pool.class_start[first_class]
    class_size = pool.class_start[first_class + 1] - class_begin
    place = _scale(second_draws, len(pool.labels) - class_size)
    place += np.where(place >= class_begin, class_size, 0)
    return np.stack([first, pool.class_order[place]])


def _paste(
    spec: OverlaySpec,
    pool: DigitPool,
    rows: NDArray[np.int64],
    shifts: NDArray[np.int64],
    present: NDArray[np.bool_],
) -> NDArray[np.uint8]:
    """Return the layers (K, N, H, W): each digit alone on its canvas, zero where it is absent."""
    layers = np.zeros((*present.shape, spec.canvas_px, spec.canvas_px), np.uint8)
    windows = sliding_window_view(layers, (spec.digit_px, spec.digit_px), axis=(2, 3), writeable=True)
    corners = shifts + (spec.canvas_px - spec.digit_px) // 2
    place, sample = np.nonzero(present)
    windows[place, sample, corners[place, 0, sample], corners[place, 1, sample]] = pool.images[rows[present]]
    return layers


def _measure_overlap(layers: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return, for layers (2, N, H, W), the share (N,) of inked pixels that both digits ink."""
    inked = (layers > 0).reshape(len(layers), layers.shape[1], -1)
    # Summed as bytes: adding bools takes twice as long. 256 x 256 pixels of 1 need 17 bits.
    both = (inked[0] & inked[1]).view(np.uint8).sum(axis=1, dtype=np.uint32)
    either = (inked[0] | inked[1]).view(np.uint8).sum(axis=1, dtype=np.uint32)
    overlap: NDArray[np.float32] = (both / np.maximum(either, 1)).astype(np.float32)
    return overlap
