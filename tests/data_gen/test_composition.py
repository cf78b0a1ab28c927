"""Layers, their merge and their overlap, held against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from data_gen.composition import measure_overlap, merge_layers, paste_layers
from data_gen.errors import DataError
from data_gen.merging import MERGES
from data_gen.overlap import parse_overlap
from data_gen.spec import make_spec
from tests.data_gen.literal import render
from tests.data_gen.sources import make_pool, make_source

SPEC = make_spec(digit_px=2, canvas_px=5, max_shift_px=1, max_digits=3)
POOL = make_pool(np.array([[[1, 2], [3, 4]], [[9, 0], [0, 9]]], np.uint8), [0, 1])


def test_a_digit_lies_where_its_offset_says() -> None:
    index = np.array([[0, 1, -1], [1, -1, -1]])
    offset = np.array([[[-1, 1], [0, 0], [0, 0]], [[1, -1], [0, 0], [0, 0]]])
    layers = paste_layers(SPEC, POOL, index, offset)
    assert layers.shape == (3, 2, 5, 5)
    expected = np.zeros((3, 2, 5, 5), np.uint8)
    expected[0, 0, 0:2, 2:4] = [[1, 2], [3, 4]]  # the centre is at (5 - 2) // 2 = 1
    expected[1, 0, 1:3, 1:3] = [[9, 0], [0, 9]]
    expected[0, 1, 2:4, 0:2] = [[9, 0], [0, 9]]
    assert np.array_equal(layers, expected)


def make_layers(*values: list[int]) -> NDArray[np.uint8]:
    return np.array(values, np.uint8).reshape(len(values), 1, 2, 2)


def test_overlap_counts_pixels_that_several_digits_ink() -> None:
    for layers, expected in (
        (make_layers([5, 5, 0, 0]), 0),
        (make_layers([5, 5, 0, 0], [0, 7, 7, 0]), 1 / 3),
        (make_layers([5, 5, 0, 0], [0, 7, 7, 0], [1, 1, 1, 1]), 3 / 4),
        (make_layers([5, 0, 0, 0], [5, 0, 0, 0], [5, 0, 0, 0]), 1),
        (make_layers([0, 0, 0, 0], [0, 0, 0, 0]), 0),
    ):
        assert measure_overlap(layers) == np.float32(expected)
        assert measure_overlap(layers).dtype == np.float32


def test_no_samples_make_no_images() -> None:
    layers = paste_layers(SPEC, POOL, np.zeros((0, 3), int), np.zeros((0, 3, 2), int))
    assert measure_overlap(layers).shape == (0,)
    assert merge_layers(SPEC, layers, np.zeros(0, int)).shape == (0, 5, 5)


@pytest.mark.parametrize("merge", MERGES)
def test_four_layers_merge_as_pixel_by_pixel(merge: str) -> None:
    spec = make_spec(digit_px=6, canvas_px=9, max_shift_px=1, max_digits=4, merge=merge)
    pool = make_pool(make_source().train.images[:40], list(range(10)) * 4)
    rng = np.random.default_rng(1)
    index = rng.integers(0, 40, (12, 4))
    num_digits = rng.integers(1, 5, 12)
    index[np.arange(4) >= num_digits[:, None]] = -1
    offset = rng.integers(-1, 2, (12, 4, 2)) * (index >= 0)[:, :, None]
    layers = paste_layers(spec, pool, index, offset)
    images, overlap = merge_layers(spec, layers, num_digits), measure_overlap(layers)
    for n in range(12):
        rows = [row for row in index[n] if row >= 0]
        image, share = render(spec, [pool.images[row] for row in rows], offset[n][: len(rows)].tolist())
        assert images[n].tolist() == image
        assert overlap[n] == np.float32(share)


def test_a_range_of_overlaps_is_read() -> None:
    assert parse_overlap("0.2:0.5") == (0.2, 0.5)
    assert parse_overlap("0.2:") == (0.2, 1.0)
    assert parse_overlap(":0.5") == (0.0, 0.5)
    for text in ("", "0.5", "a:b", "0.1:0.2:0.3", "0.1-0.2"):
        with pytest.raises(DataError, match=r"--overlap .*: write MIN:MAX, as in 0\.2:0\.5"):
            parse_overlap(text)
