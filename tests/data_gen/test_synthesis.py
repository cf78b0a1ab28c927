from __future__ import annotations

import re
from dataclasses import fields, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from data_gen.digits import DigitPool, DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.merging import MERGES
from data_gen.spec import OverlaySpec, make_spec
from data_gen.synthesis import BLOCK_SIZE, SampleBlock, check_overlap, synthesize, synthesize_at
from tests.data_gen.literal import render
from tests.data_gen.sources import make_source, make_tiny_spec


def _same(first: SampleBlock, second: SampleBlock) -> bool:
    return all(np.array_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(SampleBlock))


def _pool(images: NDArray[np.uint8], labels: list[int]) -> DigitPool:
    return DigitPool(images, np.array(labels, np.uint8), np.arange(len(labels), dtype=np.int32))


def _draw_sample(
    spec: OverlaySpec, pool: DigitPool, split_number: int, index: int, attempt: int = 0
) -> tuple[list[int], list[list[int]]]:
    """One sample's digits and shifts, literally: from its uniform numbers, and lists of candidates."""
    block, place = divmod(index, BLOCK_SIZE)
    num_places = len(spec.count_weights)

    def draw(*key: int) -> list[float]:
        stream = np.random.SeedSequence(spec.seed, spawn_key=(split_number, block, *key))
        table = np.random.Generator(np.random.Philox(stream)).random((1 + 3 * num_places, BLOCK_SIZE))
        return [float(value) for value in table[:, place]]

    count, bound = 1, 0.0
    for weight in spec.count_weights[:-1]:
        bound += weight
        count += draw()[0] >= bound
    count = min(count, spec.most_digits)
    u = draw(attempt) if attempt else draw()
    rows: list[int] = []
    for number in range(count):
        taken = {int(pool.labels[row]) for row in rows}
        candidates = [
            row
            for label in range(128)
            for row in range(len(pool.labels))
            if pool.labels[row] == label and label not in taken
        ]
        if number == 0:
            candidates = list(range(len(pool.labels)))
        rows.append(candidates[int(u[1 + number] * len(candidates))])
    width = 2 * spec.max_shift_px + 1
    shifts = [
        [int(u[1 + num_places + 2 * k + axis] * width) - spec.max_shift_px for axis in (0, 1)] for k in range(count)
    ]
    return rows, shifts


def _check_against_literal(spec: OverlaySpec, source: DigitSource, first: int, num: int) -> None:
    """Hold samples of every split against the slow way of drawing them."""
    num_redrawn = 0
    for number, (split, pool) in enumerate(split_digits(source, spec.seed).items()):
        samples = synthesize(spec, pool, split, first, first + num)
        for n in range(num):
            for attempt in range(1000):
                rows, shifts = _draw_sample(spec, pool, number, first + n, attempt)
                image, overlap = render(spec, [pool.images[row] for row in rows], shifts)
                is_within = np.float32(spec.min_overlap) <= np.float32(overlap) <= np.float32(spec.max_overlap)
                if len(rows) == 1 or is_within:
                    break
                num_redrawn += 1
            classes = [int(pool.labels[row]) for row in rows]
            absent = spec.max_digits - len(rows)
            assert samples.images[n].tolist() == image
            assert samples.overlap[n] == np.float32(overlap)
            assert samples.labels[n].tolist() == [int(label in classes) for label in range(spec.num_classes)]
            assert samples.digits[n].tolist() == classes + [-1] * absent
            assert samples.source_index[n].tolist() == rows + [-1] * absent
            assert samples.offset_px[n].tolist() == shifts + [[0, 0]] * absent
    assert (num_redrawn > 0) == spec.bounds_overlap


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize("canvas_px", [12, 13])  # 13: the centre is between two pixels
def test_samples_equal_a_literal_loop(merge: str, canvas_px: int, tiny: DigitSource) -> None:
    spec = make_tiny_spec(merge=merge, single_fraction=0.4, canvas_px=canvas_px, seed=5)
    _check_against_literal(spec, tiny, BLOCK_SIZE - 15, 30)


@pytest.mark.parametrize("weights", [{1: 1}, {3: 1}, {1: 1, 2: 0, 4: 2}, {1: 1, 2: 1, 3: 1}])
def test_any_number_of_digits_equals_a_literal_loop(weights: dict[int, float], tiny: DigitSource) -> None:
    for max_digits in {max(weights), 4}:  # places that are never filled change the table, and nothing else
        spec = make_tiny_spec(count_weights=weights, max_digits=max_digits, merge="mean")
        _check_against_literal(spec, tiny, BLOCK_SIZE - 6, 12)


def test_bounds_of_overlap_equal_a_literal_loop(tiny: DigitSource) -> None:
    spec = make_tiny_spec(count_weights={1: 1, 2: 2, 3: 2}, overlap=(0.15, 0.25), seed=3)
    _check_against_literal(spec, tiny, BLOCK_SIZE - 6, 12)


def test_other_numbers_of_classes_equal_a_literal_loop() -> None:
    names = tuple("abcdefghijklmnopqrstuvw")
    spec = make_tiny_spec(class_names=names, max_digits=3)
    _check_against_literal(spec, make_source(class_names=names), 0, 10)


def test_samples_by_index_are_those_of_ranges(tiny: DigitSource) -> None:
    spec = make_tiny_spec(max_digits=3, overlap=(0.1, 0.9))
    pool = split_digits(tiny, 0)["train"]
    whole = synthesize(spec, pool, "train", 0, 3 * BLOCK_SIZE)
    indices = np.array([3071, 0, 1024, 5, 5, 1023, 2048, 0])
    assert _same(synthesize_at(spec, pool, "train", indices), whole[indices])
    far = 10**9
    assert _same(
        synthesize_at(spec, pool, "train", np.array([far + 1])), synthesize(spec, pool, "train", far + 1, far + 2)
    )
    assert len(synthesize_at(spec, pool, "train", np.array([], int))) == 0
    with pytest.raises(DataError, match="no sample -3; use 0 or more"):
        synthesize_at(spec, pool, "train", np.array([4, -3]))


def test_counts_have_the_distribution_that_was_asked_for(tiny: DigitSource) -> None:
    # Bounds of overlap must not change it, though singles always pass and others do not.
    weights = (0.1, 0.2, 0.4, 0.3)
    for overlap in ((0.0, 1.0), (0.2, 0.4)):
        spec = make_tiny_spec(count_weights=dict(enumerate(weights, start=1)), overlap=overlap)
        samples = synthesize(spec, split_digits(tiny, 0)["train"], "train", 0, 8000)
        num_digits = (samples.digits >= 0).sum(axis=1)
        assert np.array_equal(samples.labels.sum(axis=1), num_digits)
        for count, weight in enumerate(weights, start=1):
            sigma = np.sqrt(8000 * weight * (1 - weight))
            assert abs((num_digits == count).sum() - 8000 * weight) < 4 * sigma
        found = samples.overlap[num_digits > 1]
        assert np.all((found >= np.float32(overlap[0])) & (found <= np.float32(overlap[1])))


def test_a_number_of_digits_without_weight_never_occurs(tiny: DigitSource) -> None:
    third = 1 / 3
    for weights in ((third, third, third, 0.0), (0.0, 0.7, 0.1 + 0.2, 0.0), (0.0, 0.0, 1.0, 0.0)):
        spec = replace(make_tiny_spec(max_digits=4), count_weights=weights)
        samples = synthesize(spec, split_digits(tiny, 0)["train"], "train", 0, 20 * BLOCK_SIZE)
        found = set((samples.digits >= 0).sum(axis=1).tolist())
        assert found == {count for count, weight in enumerate(weights, start=1) if weight}


def test_overlaps_that_hardly_occur_are_refused_with_those_that_do(tiny: DigitSource) -> None:
    pool = split_digits(tiny, 0)["train"]
    check_overlap(make_tiny_spec(overlap=(0.2, 0.4)), pool, "train")
    check_overlap(make_tiny_spec(), pool, "train")
    for overlap in ((0.9, 1.0), (0.0, 0.0001)):
        spec = make_tiny_spec(overlap=overlap, max_shift_px=0)
        with pytest.raises(DataError) as caught:
            check_overlap(spec, pool, "train")
        assert re.match(
            r"--overlap .*: (none of 2,048|fewer than 1 % of the) samples of 2 digits have such an overlap "
            r"\(98 % have 0\.\d+ to 0\.\d+, half have less than 0\.\d+\); widen it, or change --max-shift or --canvas",
            str(caught.value),
        )


def test_an_overlap_that_never_occurs_ends_in_an_error(tiny: DigitSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_gen.synthesis.MAX_ATTEMPTS", 20)
    spec = make_tiny_spec(overlap=(0.99, 1.0), single_fraction=0.5)
    with pytest.raises(
        DataError, match=r"--overlap 0.99:1: none of 20 draws of valid sample 1\d\d\d has such an overlap"
    ):
        synthesize(spec, split_digits(tiny, 0)["valid"], "valid", 1500, 1510)


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
