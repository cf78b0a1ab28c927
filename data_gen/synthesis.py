"""Samples as a pure function of (spec, digit pool, split, index); no files, no shared state.

Samples come in blocks of `BLOCK_SIZE`. Block b of split s draws from its own generator,

    Generator(Philox(SeedSequence(seed, spawn_key=(s, b)))),   s = 0, 1, 2 for train, valid, test,

one table of 1 + 3 K uniform numbers per sample, whatever their values: so any samples, drawn by any worker in any
order, are the same. The rows of the table: how many digits; K times which digit; K times the shift in y, then in x.
An integer below n is floor(n u), off uniform by less than n / 2^53; unlike NumPy's own bounded integers, the stream
of u is fixed by the bit generator and does not change with its version.

Where the spec bounds the overlap, samples outside the bounds are drawn again: attempt a = 1, 2, ... of a block takes
its table from spawn_key = (s, b, a), and redraws digits and shifts of the samples that are still refused, but not
their number of digits. So the numbers keep their distribution, and a sample depends on no other.

Indices may go beyond the number of samples in the spec: those are fresh samples of the same distribution.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from data_gen.composition import ABSENT, measure_overlap, merge_layers, paste_layers
from data_gen.digits import DigitPool
from data_gen.errors import DataError
from data_gen.spec import SPLITS, OverlaySpec, check_split

BLOCK_SIZE = 1024
"""Samples per random stream. Changing it changes every dataset."""

MAX_ATTEMPTS = 10_000
"""Draws of one sample before its overlap counts as impossible; `check_overlap` refuses hopeless bounds before."""

_LEAST_ACCEPTED = 0.01
"""Share of draws within the bounds of overlap below which a spec is refused: each sample would take 100 draws."""

_MAX_LAYER_BYTES = 2**24
"""Digits on canvases of their own that are in memory at a time, before they become images."""


@dataclass(frozen=True, eq=False)
class SampleBlock:
    """N samples and where they come from; K places for digits, of which the first is never empty.

    Attributes:
        images: uint8 (N, H, W).
        labels: uint8 (N, number of classes), multi-hot.
        digits: int8 (N, K), the class of each digit; -1 where absent.
        source_index: int32 (N, K), each digit's row in the split's pool; -1 where absent.
        offset_px: int8 (N, K, 2), shift (dy, dx) of each digit from the centre; 0 where absent.
        overlap: float32 (N,), pixels inked by two digits or more / pixels inked by any; ink is a value above 0. 0 for
            single digits.
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

    def __getitem__(self, rows: slice | NDArray[np.integer]) -> SampleBlock:
        """Return some of the samples, in the order asked for."""
        return SampleBlock(*(getattr(self, field.name)[rows] for field in fields(self)))


def join_blocks(blocks: list[SampleBlock]) -> SampleBlock:
    """Return the samples of one block or more, one after the other."""
    if len(blocks) == 1:
        return blocks[0]
    return SampleBlock(
        *(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(blocks[0]))
    )


def synthesize(spec: OverlaySpec, pool: DigitPool, split: str, start: int, stop: int) -> SampleBlock:
    """Return the samples [start, stop) of `split`, drawn from `pool`.

    Raises:
        DataError: unknown split, start or stop out of order, digits of another size than the spec's, too few
            classes in the pool, or no draw has an overlap within the spec's bounds.
    """
    check_split(split)
    if not 0 <= start <= stop:
        raise DataError(f"there is no range of samples from {start} to {stop}; use 0 <= start <= stop")
    check_pool(spec, pool, split)
    parts = []
    for block in range(start // BLOCK_SIZE, -(-stop // BLOCK_SIZE)):
        first = block * BLOCK_SIZE
        places = np.arange(max(start, first), min(stop, first + BLOCK_SIZE)) - first
        parts.append(_synthesize_block(spec, pool, split, block, places))
    return join_blocks(parts or [_synthesize_block(spec, pool, split, 0, np.arange(0))])


def synthesize_at(spec: OverlaySpec, pool: DigitPool, split: str, indices: NDArray[np.integer]) -> SampleBlock:
    """Return the samples at `indices`, int (N,), in the order asked for; several of a block cost little more than one.

    Raises:
        DataError: as for `synthesize`, or an index is negative.
    """
    check_split(split)
    check_pool(spec, pool, split)
    wanted = np.asarray(indices, np.int64)
    if not wanted.size:
        return _synthesize_block(spec, pool, split, 0, wanted)
    if wanted.min() < 0:
        raise DataError(f"there is no sample {int(wanted.min())}; use 0 or more")
    order = np.argsort(wanted, kind="stable")
    blocks, starts = np.unique(wanted[order] // BLOCK_SIZE, return_index=True)
    parts = [
        _synthesize_block(spec, pool, split, int(block), wanted[rows] - block * BLOCK_SIZE)
        for block, rows in zip(blocks, np.split(order, starts[1:]), strict=True)
    ]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return join_blocks(parts)[back]


def check_pool(spec: OverlaySpec, pool: DigitPool, split: str) -> None:
    """Check that samples as `spec` wants them can be drawn from `pool`.

    Raises:
        DataError: the digits have another size, or too few classes.
    """
    if pool.images.shape[1:] != (spec.digit_px, spec.digit_px):
        size = "x".join(str(length) for length in pool.images.shape[1:])
        raise DataError(
            f"the {split} digits have {size} px, but the spec is for digits of {spec.digit_px} px; adapt the spec"
        )
    num_found = int(np.count_nonzero(np.diff(pool.class_start)))
    if num_found < 2:
        raise DataError(f"the {split} digits are all of one class; overlays need at least two")
    if num_found < spec.most_digits:
        raise DataError(
            f"the {split} digits are of {num_found} classes, too few for {spec.most_digits} digits of different "
            f"classes; use --max-digits {num_found}"
        )


def check_overlap(spec: OverlaySpec, pool: DigitPool, split: str, *, least_accepted: float = _LEAST_ACCEPTED) -> None:
    """Check, before a long work, that enough draws have an overlap within the spec's bounds.

    Two blocks of draws are looked at for every number of digits above one.

    Raises:
        DataError: none has, or less than the share `least_accepted`; the message tells which overlaps there are.
    """
    if not spec.bounds_overlap:
        return
    for count in range(2, spec.max_digits + 1):
        if spec.count_weights[count - 1] == 0:
            continue
        num_digits = np.full(BLOCK_SIZE, count)
        found = np.concatenate(
            [
                measure_overlap(paste_layers(spec, pool, *_draw_digits(spec, pool, table, num_digits)))
                for table in (_draw_table(spec, split, block, 0) for block in range(2))
            ]
        )
        share = _accept(spec, found).mean()
        if share == 0 or share < least_accepted:
            few = f"none of {len(found):,}" if share == 0 else f"fewer than {least_accepted * 100:g} % of the"
            low, middle, high = np.quantile(found, [0.01, 0.5, 0.99])
            raise DataError(
                f"--overlap {spec.min_overlap:g}:{spec.max_overlap:g}: {few} samples of {count} "
                f"digits have such an overlap (98 % have {low:.3f} to {high:.3f}, half have less than {middle:.3f}); "
                "widen it, or change --max-shift or --canvas"
            )


def _synthesize_block(
    spec: OverlaySpec, pool: DigitPool, split: str, block: int, places: NDArray[np.int64]
) -> SampleBlock:
    """Draw the samples at some places of one block, on large canvases a few at a time."""
    at_a_time = max(1, _MAX_LAYER_BYTES // (spec.max_digits * spec.canvas_px**2))
    groups = [places[first : first + at_a_time] for first in range(0, len(places), at_a_time)]
    return join_blocks([_synthesize_places(spec, pool, split, block, group) for group in groups or [places]])


def _synthesize_places(
    spec: OverlaySpec, pool: DigitPool, split: str, block: int, places: NDArray[np.int64]
) -> SampleBlock:
    """Draw the samples at some places of one block, all together."""
    table = _draw_table(spec, split, block, 0)[:, places]
    num_digits = _draw_counts(spec, table[0])
    rows, shifts = _draw_digits(spec, pool, table, num_digits)
    layers = paste_layers(spec, pool, rows, shifts)
    overlap = measure_overlap(layers)
    if spec.bounds_overlap:
        refused = np.flatnonzero(~_accept(spec, overlap) & (num_digits > 1))
        attempt = 0
        while len(refused):
            attempt += 1
            if attempt == MAX_ATTEMPTS:
                raise DataError(
                    f"--overlap {spec.min_overlap:g}:{spec.max_overlap:g}: none of {MAX_ATTEMPTS:,} draws of {split} "
                    f"sample {block * BLOCK_SIZE + int(places[refused[0]])} has such an overlap; widen it"
                )
            again = _draw_table(spec, split, block, attempt)[:, places[refused]]
            rows[refused], shifts[refused] = _draw_digits(spec, pool, again, num_digits[refused])
            tried = paste_layers(spec, pool, rows[refused], shifts[refused])
            overlap[refused] = measure_overlap(tried)
            accepted = _accept(spec, overlap[refused])
            layers[:, refused[accepted]] = tried[:, accepted]
            refused = refused[~accepted]

    present = rows != ABSENT
    digits = pool.labels[rows].astype(np.int8)
    digits[~present] = ABSENT
    labels = np.zeros((len(places), spec.num_classes), np.uint8)
    sample, place = np.nonzero(present)
    labels[sample, digits[sample, place]] = 1
    return SampleBlock(
        images=merge_layers(spec, layers, num_digits),
        labels=labels,
        digits=digits,
        source_index=rows.astype(np.int32),
        offset_px=shifts.astype(np.int8),
        overlap=overlap,
    )


@functools.lru_cache(maxsize=8)  # batches of fresh overlays ask for the same block many times in a row
def _draw_table(spec: OverlaySpec, split: str, block: int, attempt: int) -> NDArray[np.float64]:
    """Return the uniform numbers (1 + 3 K, BLOCK_SIZE) of an attempt at a block, read-only."""
    key = (SPLITS.index(split), block, attempt) if attempt else (SPLITS.index(split), block)
    stream = np.random.SeedSequence(spec.seed, spawn_key=key)
    table = np.random.Generator(np.random.Philox(stream)).random((1 + 3 * spec.max_digits, BLOCK_SIZE))
    table.flags.writeable = False
    return table


def _draw_counts(spec: OverlaySpec, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many digits each sample shows, int64 (N,)."""
    thresholds = np.cumsum(spec.count_weights[:-1])
    counts = 1 + np.searchsorted(thresholds, draws, side="right")
    # The weights add up to 1 but for rounding; a number of digits with weight 0 must not slip through.
    return np.minimum(counts, spec.most_digits).astype(np.int64)


def _draw_digits(
    spec: OverlaySpec, pool: DigitPool, table: NDArray[np.float64], num_digits: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pool rows (N, K), -1 where absent, and shifts (N, K, 2), 0 where absent."""
    num_places = spec.max_digits
    present = np.arange(num_places) < num_digits[:, None]
    rows = np.where(present, _draw_rows(pool, table[1 : 1 + num_places]).T, ABSENT)
    shifts = _scale(table[1 + num_places :], 2 * spec.max_shift_px + 1) - spec.max_shift_px
    shifts = shifts.reshape(num_places, 2, -1).transpose(2, 0, 1) * present[:, :, None]
    return rows, shifts


def _draw_rows(pool: DigitPool, draws: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return pool rows (K, N): the first uniform over all digits, each other over those of classes not yet there.

    In the pool sorted by class, the classes that are there are ranges; a draw, uniform over what is left, skips
    them from the lowest up. So one draw is enough, and no sample is thrown away. Where the pool has fewer than K
    classes, draws are left without meaning; `check_pool` says that no sample shows so many.
    """
    first = _scale(draws[0], len(pool.labels))
    rows = [first]
    taken = [pool.labels[first].astype(np.int64)]
    for draw in draws[1:]:
        classes = np.sort(np.stack(taken), axis=0)
        begins = pool.class_start[classes]
        sizes = pool.class_start[classes + 1] - begins
        place = _scale(draw, len(pool.labels) - sizes.sum(axis=0))
        for begin, size in zip(begins, sizes, strict=True):
            place += np.where(place >= begin, size, 0)
        row = pool.class_order[np.minimum(place, len(pool.labels) - 1)]
        rows.append(row)
        taken.append(pool.labels[row].astype(np.int64))
    return np.stack(rows)


def _scale(draws: NDArray[np.float64], limit: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn uniform numbers in [0, 1) into integers in [0, limit)."""
    return (draws * limit).astype(np.int64)


def _accept(spec: OverlaySpec, overlap: NDArray[np.float32]) -> NDArray[np.bool_]:
    # Compared in float32, as the file stores it: so what was accepted is within the bounds for every reader.
    within: NDArray[np.bool_] = (overlap >= np.float32(spec.min_overlap)) & (overlap <= np.float32(spec.max_overlap))
    return within
