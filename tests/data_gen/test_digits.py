from __future__ import annotations

import numpy as np
import pytest

from data_gen.digits import DigitSet, DigitSource, split_digits
from data_gen.errors import DataError
from tests.data_gen.sources import make_source


def test_no_digit_is_in_two_pools(mnist: DigitSource) -> None:
    pools = split_digits(mnist, 3)
    train, valid, test = (pools[split].source_row for split in ("train", "valid", "test"))
    assert (len(train), len(valid), len(test)) == (55_000, 5_000, 10_000)
    assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(60_000))
    assert np.array_equal(test, np.arange(10_000))
    for split, digit_set in (("train", mnist.train), ("valid", mnist.train), ("test", mnist.test)):
        pool = pools[split]
        assert np.array_equal(pool.images, digit_set.images[pool.source_row])
        assert np.array_equal(pool.labels, digit_set.labels[pool.source_row])
        assert np.all(np.diff(pool.source_row) > 0)


def test_the_digit_split_depends_on_the_seed_alone(tiny: DigitSource) -> None:
    rows = [split_digits(tiny, seed)["valid"].source_row.tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_small_sources_give_two_classes_to_every_pool_or_are_refused() -> None:
    labels = np.array([0] * 23 + [1] * 23, np.uint8)
    images = np.ones((46, 2, 2), np.uint8)
    for seed in range(20):  # a twelfth is 3 digits: often all of one class
        pools = split_digits(
            DigitSource(DigitSet(images, labels), DigitSet(images, labels), "two", "", ("a", "b")), seed
        )
        assert all(len(np.unique(pool.labels)) == 2 for pool in pools.values())
    few = DigitSet(images[:3], np.array([0, 0, 1], np.uint8))
    with pytest.raises(DataError, match="the digit source few has too few digits: its train split"):
        split_digits(DigitSource(few, few, "few", "", ("a", "b")), 0)


def test_classes_are_found_in_the_sorted_pool() -> None:
    pool = split_digits(make_source(), 0)["train"]
    for label in range(10):
        rows = pool.class_order[pool.class_start[label] : pool.class_start[label + 1]]
        assert np.array_equal(rows, np.flatnonzero(pool.labels == label))
