"""Source digits, and how they are divided among the splits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data_gen.errors import DataError
from data_gen.spec import SPLITS

VALID_SHARE = 12
"""One source training digit in twelve goes to the validation pool: 5,000 of MNIST's 60,000."""

_DIGIT_SPLIT_STREAM = 1000
"""First spawn key of the digit split's random stream; the splits' sample streams use 0, 1 and 2."""


@dataclass(frozen=True, eq=False)
class DigitSet:
    """Labelled digits: images uint8 (M, h, w) and labels uint8 (M,), in the order of their IDX file."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class DigitSource:
    """The digits that a dataset is made of.

    Attributes:
        train: digits for the train and valid splits.
        test: digits for the test split; never mixed with the others.
        name: a short name, e.g. "mnist".
        digest: sha256, in hex, of the four uncompressed IDX files one after the other: training images and
            labels, test images and labels.
        class_names: names of the classes, by their number in `labels`.
    """

    train: DigitSet
    test: DigitSet
    name: str
    digest: str
    class_names: tuple[str, ...]

    @property
    def digit_px(self) -> int:
        """Height and width of a digit."""
        return int(self.train.images.shape[1])


@dataclass(frozen=True, eq=False)
class DigitPool:
    """The digits that one split draws from.

    Attributes:
        images: uint8 (M, h, w).
        labels: uint8 (M,).
        source_row: int32 (M,), each digit's row in its original IDX file.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]
    source_row: NDArray[np.int32]

    @cached_property
    def class_order(self) -> NDArray[np.int64]:
        """The pool's rows sorted by class, int64 (M,); within a class in the pool's order."""
        return np.argsort(self.labels, kind="stable").astype(np.int64)

    @cached_property
    def class_start(self) -> NDArray[np.int64]:
        """Where each class starts in `class_order`, int64 (classes + 1,): class c is at [start[c], start[c + 1])."""
        return np.searchsorted(self.labels[self.class_order], np.arange(int(self.labels.max()) + 2)).astype(np.int64)


def split_digits(source: DigitSource, seed: int) -> dict[str, DigitPool]:
    """Divide a source's digits among the splits, so that no digit is in two of them.

    One twelfth of the source's training digits, chosen by a seeded permutation, is the valid pool (more, if
    those were all of one class); the rest is the train pool; the source's test digits are the test pool.
    Pools keep the order of the source.

    Raises:
        DataError: there are too few training digits for two pools with two classes each.
    """
    is_valid = choose_valid(source.train.labels, seed)
    pools = {
        "train": _take(source.train, np.flatnonzero(~is_valid)),
        "valid": _take(source.train, np.flatnonzero(is_valid)),
        "test": DigitPool(source.test.images, source.test.labels, np.arange(len(source.test.labels), dtype=np.int32)),
    }
    for split in SPLITS:
        if len(np.unique(pools[split].labels)) < 2:
            raise DataError(
                f"the digit source {source.name} has too few digits: its {split} split has fewer than two "
                "classes; use a source with more digits of each class"
            )
    return pools


def choose_valid(labels: NDArray[np.uint8], seed: int) -> NDArray[np.bool_]:
    """Return which of a source's training digits, with `labels` (M,), are those of the valid pool, bool (M,)."""
    stream = np.random.SeedSequence(seed, spawn_key=(_DIGIT_SPLIT_STREAM,))
    order = np.argsort(np.random.Generator(np.random.Philox(stream)).random(len(labels)), kind="stable")
    first_other = int(np.argmax(labels[order] != labels[order[0]]))
    is_valid = np.zeros(len(labels), bool)
    is_valid[order[: max(len(order) // VALID_SHARE, first_other + 1)]] = True
    return is_valid


def _take(digits: DigitSet, rows: NDArray[np.int64]) -> DigitPool:
    return DigitPool(digits.images[rows], digits.labels[rows], rows.astype(np.int32))
