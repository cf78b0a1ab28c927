"""What samples and digits must be, once they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.composition import ABSENT
from data_gen.digits import DigitPool
from data_gen.spec import OverlaySpec
from data_gen.store.faults import Fault
from data_gen.synthesis import SampleBlock


def list_wrong_values(
    samples: SampleBlock, spec: OverlaySpec, num_pool: int, split: str
) -> Iterator[tuple[Fault, NDArray[np.bool_]]]:
    """Yield what labels and provenance must be, as the fault of breaking it, and which samples (N,) break it.

    They must be in range and agree with each other; images are not looked at.
    """
    digits, index, offset, overlap = samples.digits, samples.source_index, samples.offset_px, samples.overlap
    present = digits != ABSENT
    in_range = (digits >= ABSENT) & (digits < spec.num_classes)

    def wrong(name: str, what: str, rows: Any) -> tuple[Fault, NDArray[np.bool_]]:
        where = f"{split}/{name}"
        return Fault(f"dataset {where} holds impossible values: {what}", where=where), np.asarray(rows, bool)

    yield wrong("digits", f"a class outside {ABSENT} to {spec.num_classes - 1}", ~in_range.all(axis=1))
    yield wrong("digits", "a sample without a digit in its first place", ~present[:, 0])
    yield wrong("digits", "a digit after an empty place", (present[:, 1:] & ~present[:, :-1]).any(axis=1))
    out = (index < ABSENT) | (index >= num_pool)
    yield wrong("source_index", f"a row outside {ABSENT} to {num_pool - 1}", out.any(axis=1))
    differs = ((index != ABSENT) != present).any(axis=1)
    yield wrong("source_index", "not absent where the digit is, or the reverse", differs)
    shift = np.abs(offset.astype(np.int16)).max(axis=2)
    yield wrong("offset_px", f"a shift of more than {spec.max_shift_px}", (shift > spec.max_shift_px).any(axis=1))
    yield wrong("offset_px", "a shift of an absent digit", ((shift > 0) & ~present).any(axis=1))
    is_share = (overlap >= 0) & (overlap <= 1)  # false for NaN
    yield wrong("overlap", "not within 0 to 1", ~is_share)
    several = present.sum(axis=1) > 1
    yield wrong("overlap", "not 0 for a single digit", is_share & ~several & (overlap != 0))
    if spec.bounds_overlap:
        within = (overlap >= np.float32(spec.min_overlap)) & (overlap <= np.float32(spec.max_overlap))
        bounds = f"{spec.min_overlap:g} to {spec.max_overlap:g}"
        yield wrong("overlap", f"outside {bounds}", is_share & several & ~within)
    expected = np.zeros(samples.labels.shape, np.uint8)
    rows, places = np.nonzero(present & in_range)
    expected[rows, digits[rows, places]] = 1
    yield wrong("labels", "other than the digits say", (samples.labels != expected).any(axis=1))
    repeats = in_range.all(axis=1) & (expected.sum(axis=1) != present.sum(axis=1))
    yield wrong("digits", "two digits of one class", repeats)


def check_sample_values(
    samples: SampleBlock, spec: OverlaySpec, num_pool: int, split: str, faults: list[Fault]
) -> None:
    """Add to `faults` what `list_wrong_values` finds, each naming its dataset."""
    faults.extend(fault for fault, rows in list_wrong_values(samples, spec, num_pool, split) if rows.any())


def check_pool_values(pool: DigitPool, spec: OverlaySpec, group: str, faults: list[Fault]) -> None:
    """Check that a pool's labels are classes of the spec, two or more, and its rows possible; add to `faults`."""
    labels: NDArray[np.uint8] = pool.labels
    if labels.max() >= spec.num_classes or labels.min() == labels.max():
        what = f"dataset {group}/labels holds impossible values: a class too high, or only one class"
        faults.append(Fault(what, where=f"{group}/labels"))
    rows = pool.source_row
    if rows.min() < 0 or len(np.unique(rows)) != len(rows):
        what = f"dataset {group}/source_row holds impossible values: negative ones, or one twice"
        faults.append(Fault(what, where=f"{group}/source_row"))
