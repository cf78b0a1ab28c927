from __future__ import annotations

import numpy as np
import pytest

from data_gen.errors import DataError
from data_gen.merging import MERGES, get_merge

EXPECTED = {
    # One row per sample; the second sample shows one digit only.
    "clip": [[0, 10, 255, 255], [0, 10, 200, 255]],
    "max": [[0, 10, 200, 255], [0, 10, 200, 255]],
    "mean": [[0, 5, 150, 128], [0, 10, 200, 255]],
}


@pytest.mark.parametrize("name", MERGES)
def test_merge_equals_hand_computed_values(name: str) -> None:
    first = np.array([[[0, 10, 200, 255]], [[0, 10, 200, 255]]], np.uint8)
    second = np.array([[[0, 0, 100, 0]], [[0, 0, 0, 0]]], np.uint8)
    before = first.copy()
    merged = get_merge(name)(np.stack([first, second]), np.array([2, 1]))
    assert merged.dtype == np.uint8
    assert merged[:, 0].tolist() == EXPECTED[name]
    assert np.array_equal(first, before)


def test_an_unknown_merge_is_refused() -> None:
    with pytest.raises(DataError, match="--merge 'sum' is unknown; choose from: clip, max, mean"):
        get_merge("sum")
