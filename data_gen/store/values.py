"""What samples and digits must be, once they are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_gen.composition import ABSENT
from data_gen.digits import DigitPool
from data_gen.spec import OverlaySpec
from data_gen.store.faults import Fault
from data_gen.synthesis import SampleBlock


def check_sample_values(
    samples: SampleBlock, spec: OverlaySpec, num_pool: int, split: str, faults: list[Fault]
) -> None:
    """Check that samples' labels and provenance are in range and agree with each other.

    Adds to `faults` what is not so, each naming its dataset.
    """
    digits, index, offset = samples.digits, samples.source_index, samples.offset_px
    present = digits != ABSENT
    in_range = (digits >= ABSENT) & (digits < spec.num_classes)

    def require(valid: object, name: str, what: str) -> None:
        fault = Fault(f"dataset {split}/{name} holds impossible values: {what}", where=f"{split}/{name}")
        if not valid and fault not in faults:
            faults.append(fault)

    require(np.all(in_range), "digits", f"a class outside {ABSENT} to {spec.num_classes - 1}")
    require(np.all(present[:, 0]), "digits", "a sample without a digit in its first place")
    require(not np.any(present[:, 1:] & ~present[:, :-1]), "digits", "a digit after an empty place")
    require(np.all((index >= ABSENT) & (index < num_pool)), "source_index", f"a row outside {ABSENT} to {num_pool - 1}")
    require(np.array_equal(index != ABSENT, present), "source_index", "not absent where the digit is, or the reverse")
    shift = np.abs(offset.astype(np.int16))
    require(np.all(shift <= spec.max_shift_px), "offset_px", f"a shift of more than {spec.max_shift_px}")
    require(not np.any(shift[~present]), "offset_px", "a shift of an absent digit")
    overlap = samples.overlap
    require(np.all((overlap >= 0) & (overlap <= 1)), "overlap", "not within 0 to 1")  # also false for NaN
    several = present.sum(axis=1) > 1
    require(not np.any(overlap[~several]), "overlap", "not 0 for a single digit")
    within = (overlap >= np.float32(spec.min_overlap)) & (overlap <= np.float32(spec.max_overlap))
    require(
        not spec.bounds_overlap or np.all(within[several]),
        "overlap",
        f"outside {spec.min_overlap:g} to {spec.max_overlap:g}",
    )
    expected = np.zeros(samples.labels.shape, np.uint8)
    rows, places = np.nonzero(present & in_range)
    expected[rows, digits[rows, places]] = 1
    require(np.array_equal(samples.labels, expected), "labels", "other than the digits say")
    require(np.array_equal(expected.sum(axis=1), present.sum(axis=1)), "digits", "two digits of one class")


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
