from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from numpy.typing import NDArray

from data_gen.digits import DigitPool, DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.merging import MERGES
from data_gen.spec import OverlaySpec, make_spec
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, synthesize
from tests.data_gen.sources import make_source, make_tiny_spec


def _same(first: SampleBlock, second: SampleBlock) -> bool:
    return all(np.array_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(SampleBlock))


def _pool(images: NDArray[np.uint8], labels: list[int]) -> DigitPool:
    return DigitPool(images, np.array(labels, np.uint8), np.arange(len(labels), dtype=np.int32))


def _draw_sample(
    spec: OverlaySpec, pool: DigitPool, split_number: int, index: int
) -> tuple[list[int], list[list[int]]]:
    """One sample's digits and shifts, literally: from its seven uniform numbers, and one list of candidates."""
    block, place = divmod(index, BLOCK_SIZE)
    stream = np.random.SeedSequence(spec.seed, spawn_key=(split_number, block))
    u = np.random.Generator(np.random.Philox(stream)).random((7, BLOCK_SIZE))[:, place]
    rows = [int(u[1] * len(pool.labels))]
    if not u[0] < spec.single_fraction:
        others = [
            row
            for label in range(10)
            for row in range(len(pool.labels))
            if pool.labels[row] == label and label != pool.labels[rows[0]]
        ]
        rows.append(others[int(u[2] * len(others))])
    width = 2 * spec.max_shift_px + 1
    shifts = [[int(u[3 + 2 * k + axis] * width) - spec.max_shift_px for axis in (0, 1)] for k in range(len(rows))]
    return rows, shifts


def _render_sample(
    spec: OverlaySpec, pool: DigitPool, rows: list[int], shifts: list[list[int]]
) -> tuple[list[list[int]], float]:
    """One image and its overlap, pixel by pixel, in plain integers."""
    side = spec.canvas_px
    corner = (side - spec.digit_px) // 2
    layers = [[[0] * side for _ in range(side)] for _ in rows]
    for layer, row, (dy, dx) in zip(layers, rows, shifts, strict=True):
        for y in range(spec.digit_px):
            for x in range(spec.digit_px):
                layer[corner + dy + y][corner + dx + x] = int(pool.images[row, y, x])
    image = [[0] * side for _ in range(side)]
    both = either = 0
    for y in range(side):
        for x in range(side):
            values = [layer[y][x] for layer in layers]
            image[y][x] = {
                "clip": min(sum(values), 255),
                "max": max(values),
                "mean": int(sum(values) / len(values) + 0.5),
            }[spec.merge]
            both += len(values) == 2 and min(values) > 0
            either += max(values) > 0
    return image, both / either


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("canvas_px", [12, 13])  # 13: the centre is between two pixels
def test_samples_equal_a_literal_loop(merge: str, canvas_px: int, tiny: DigitSource) -> None:
    spec = make_tiny_spec(merge=merge, single_fraction=0.4, canvas_px=canvas_px, seed=5)
    for number, (split, pool) in enumerate(split_digits(tiny, spec.seed).items()):
        start = BLOCK_SIZE - 15
        samples = synthesize(spec, pool, split, start, start + 30)
        for n in range(30):
            rows, shifts = _draw_sample(spec, pool, number, start + n)
            image, overlap = _render_sample(spec, pool, rows, shifts)
            classes = [int(pool.labels[row]) for row in rows]
            absent = 2 - len(rows)
            assert samples.images[n].tolist() == image
            assert samples.overlap[n] == np.float32(overlap if not absent else 0)
            assert samples.labels[n].tolist() == [int(label in classes) for label in range(10)]
            assert samples.digits[n].tolist() == classes + [-1] * absent
            assert samples.source_index[n].tolist() == rows + [-1] * absent
            assert samples.offset_px[n].tolist() == shifts + [[0, 0]] * absent


def test_any_range_is_a_slice_of_the_whole(tiny: DigitSource) -> None:
    spec = make_tiny_spec()
    pool = split_digits(tiny, 0)["train"]
    whole = synthesize(spec, pool, "train", 0, 3 * BLOCK_SIZE)
    for start, stop in [(0, 1), (7, 7), (1023, 1025), (1024, 2048), (5, 3000), (3071, 3072), (0, 0)]:
        part = synthesize(spec, pool, "train", start, stop)
        cut = SampleBlock(*(getattr(whole, field.name)[start:stop] for field in fields(SampleBlock)))
        assert len(part) == stop - start
        assert _same(part, cut)


def test_types_and_shapes(tiny: DigitSource) -> None:
    samples = synthesize(make_tiny_spec(), split_digits(tiny, 0)["test"], "test", 0, 5)
    found = {
        field.name: (getattr(samples, field.name).dtype, getattr(samples, field.name).shape)
        for field in fields(SampleBlock)
    }
    assert found == {
        "images": (np.uint8, (5, 12, 12)),
        "labels": (np.uint8, (5, 10)),
        "digits": (np.int8, (5, 2)),
        "source_index": (np.int32, (5, 2)),
        "offset_px": (np.int8, (5, 2, 2)),
        "overlap": (np.float32, (5,)),
    }


def test_diverse_samples_show_one_or_two_digits_of_different_classes(mnist: DigitSource) -> None:
    samples = synthesize(make_spec("diverse"), split_digits(mnist, 0)["train"], "train", 0, 6000)
    num_classes = samples.labels.sum(axis=1)
    assert set(num_classes.tolist()) == {1, 2}
    assert 884 <= (num_classes == 1).sum() <= 1116  # 6000 / 6, give or take 4 sigma
    assert np.array_equal(num_classes, (samples.digits >= 0).sum(axis=1))
    assert np.array_equal(samples.digits[:, 1] == -1, num_classes == 1)


@pytest.mark.parametrize(("fraction", "num_digits"), [(0.0, 2), (1.0, 1)])
def test_the_extreme_fractions_are_exact(fraction: float, num_digits: int, tiny: DigitSource) -> None:
    samples = synthesize(make_tiny_spec(single_fraction=fraction), split_digits(tiny, 0)["train"], "train", 0, 3000)
    assert np.all(samples.labels.sum(axis=1) == num_digits)


@pytest.mark.parametrize("shift_px", [0, 1, 3])
def test_shifts_cover_the_whole_range_evenly(shift_px: int, tiny: DigitSource) -> None:
    spec = make_tiny_spec(max_shift_px=shift_px, single_fraction=0.0)
    offset_px = synthesize(spec, split_digits(tiny, 0)["train"], "train", 0, 7000).offset_px
    for place in (0, 1):
        for axis in (0, 1):
            values, counts = np.unique(offset_px[:, place, axis], return_counts=True)
            assert values.tolist() == list(range(-shift_px, shift_px + 1))
            expected = 7000 / (2 * shift_px + 1)
            assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 1)


def test_the_second_digit_is_uniform_over_all_digits_of_other_classes() -> None:
    # Class 0 has one digit, class 1 two, class 9 four; nothing between.
    labels = [9, 1, 9, 0, 9, 1, 9]
    pool = _pool(np.ones((7, 2, 2), np.uint8), labels)
    spec = make_spec(digit_px=2, canvas_px=2, max_shift_px=0, single_fraction=0.0)
    pairs = synthesize(spec, pool, "train", 0, 40 * BLOCK_SIZE).source_index
    for first in range(7):
        second = pairs[pairs[:, 0] == first, 1]
        allowed = [row for row in range(7) if labels[row] != labels[first]]
        counts = np.bincount(second, minlength=7)
        assert np.flatnonzero(counts).tolist() == allowed
        expected = len(second) / len(allowed)
        assert np.all(np.abs(counts[allowed] - expected) < 5 * np.sqrt(expected))


def test_overlap_equals_a_hand_computed_value() -> None:
    left = [[9, 0], [9, 0]]
    cross = [[1, 1], [0, 255]]
    pool = _pool(np.array([left, cross], np.uint8), [3, 8])
    spec = make_spec(digit_px=2, canvas_px=2, max_shift_px=0, single_fraction=0.5)
    samples = synthesize(spec, pool, "test", 0, 50)
    pairs = samples.digits[:, 1] >= 0
    assert 0 < pairs.sum() < 50
    assert np.all(samples.overlap[pairs] == np.float32(1 / 4))  # one pixel of four is inked by both
    assert np.all(samples.overlap[~pairs] == 0)


def test_blank_digits_have_no_overlap() -> None:
    pool = _pool(np.zeros((2, 2, 2), np.uint8), [0, 1])
    spec = make_spec(digit_px=2, canvas_px=2, max_shift_px=0, single_fraction=0.0)
    assert np.all(synthesize(spec, pool, "train", 0, 10).overlap == 0)


def test_seeds_splits_and_blocks_differ(tiny: DigitSource) -> None:
    pool = split_digits(tiny, 0)["train"]
    starts = [("train", 0), ("train", BLOCK_SIZE), ("valid", 0), ("test", 0)]
    drawn = [
        synthesize(make_tiny_spec(seed=seed), pool, split, start, start + 8).source_index.tobytes()
        for seed in (0, 1, 2**63 - 1)
        for split, start in starts
    ]
    assert len(set(drawn)) == len(drawn)


def test_no_sample_is_repeated_beyond_chance(mnist: DigitSource) -> None:
    samples = synthesize(make_spec(), split_digits(mnist, 0)["train"], "train", 0, 6 * BLOCK_SIZE)
    assert len({image.tobytes() for image in samples.images}) == len(samples)


def test_impossible_requests_are_refused(tiny: DigitSource) -> None:
    spec, pool = make_tiny_spec(), split_digits(tiny, 0)["train"]
    with pytest.raises(DataError, match="no split 'dev'; choose from: train, valid, test"):
        synthesize(spec, pool, "dev", 0, 1)
    with pytest.raises(DataError, match="from 5 to 4"):
        synthesize(spec, pool, "train", 5, 4)
    with pytest.raises(DataError, match="6x6 px, but the spec is for digits of 28 px"):
        synthesize(make_spec(), pool, "train", 0, 1)
    one_class = _pool(make_source().train.images[:3], [4, 4, 4])
    with pytest.raises(DataError, match="the train digits are all of one class"):
        synthesize(spec, one_class, "train", 0, 1)
