"""Whatever the spec: samples can be made again from their provenance, and no text but a spec is taken for one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_gen.digits import split_digits
from data_gen.errors import DataError
from data_gen.merging import MERGES
from data_gen.spec import SPLITS, OverlaySpec, make_spec
from data_gen.synthesis import synthesize
from tests.data_gen.literal import render
from tests.data_gen.sources import make_source

quick = settings(deadline=None, derandomize=True, database=None)


@st.composite
def draw_specs(draw: st.DrawFn) -> OverlaySpec:
    """Draw specs of small images, of every number of digits, merge, shift and kind of bounds."""
    digit_px = draw(st.integers(2, 6))
    max_shift_px = draw(st.integers(0, 3))
    num_classes = draw(st.integers(4, 12))
    weights = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4).filter(any))
    overlap = draw(st.sampled_from([None, (0.0, 0.6), (0.1, 0.9)])) if any(weights[1:]) else None
    return make_spec(
        seed=draw(st.integers(0, 2**63 - 1)),
        num_train=draw(st.integers(1, 40)),
        num_valid=1,
        num_test=draw(st.integers(1, 40)),
        count_weights=dict(enumerate(weights, start=1)),
        max_shift_px=max_shift_px,
        canvas_px=digit_px + 2 * max_shift_px + draw(st.integers(0, 3)),
        merge=draw(st.sampled_from(sorted(MERGES))),
        overlap=overlap,
        digit_px=digit_px,
        class_names=tuple(f"class {number}" for number in range(num_classes)),
    )


@settings(quick, max_examples=60)
@given(draw_specs(), st.sampled_from(SPLITS), st.integers(0, 5000))
def test_every_sample_decodes_back_from_its_provenance(spec: OverlaySpec, split: str, start: int) -> None:
    source = make_source(digit_px=spec.digit_px, class_names=spec.class_names)
    pool = split_digits(source, spec.seed)[split]
    samples = synthesize(spec, pool, split, start, start + 6)
    for n in range(len(samples)):
        rows = [int(row) for row in samples.source_index[n] if row >= 0]
        shifts = samples.offset_px[n].tolist()
        image, overlap = render(spec, [pool.images[row] for row in rows], shifts[: len(rows)])
        classes = [int(pool.labels[row]) for row in rows]
        assert samples.images[n].tolist() == image
        assert samples.overlap[n] == np.float32(overlap)
        assert samples.digits[n].tolist() == classes + [-1] * (spec.max_digits - len(rows))
        assert np.flatnonzero(samples.labels[n]).tolist() == sorted(set(classes))
        assert len(set(classes)) == len(rows) >= 1
        assert spec.count_weights[len(rows) - 1] > 0
        assert np.abs(shifts).max(initial=0) <= spec.max_shift_px
        assert not np.any(shifts[len(rows) :])


@settings(quick, max_examples=100)
@given(draw_specs())
def test_a_spec_comes_back_from_json(spec: OverlaySpec) -> None:
    assert OverlaySpec.from_json(spec.to_json()) == spec
    assert OverlaySpec.from_json(spec.to_json()).to_json() == spec.to_json()
    assert OverlaySpec.from_dict(spec.to_dict()) == spec


def read_or_refuse(text: str) -> None:
    try:
        spec = OverlaySpec.from_json(text)
    except DataError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 500
    else:
        assert OverlaySpec.from_json(spec.to_json()) == spec


@settings(quick, max_examples=200)
@given(st.text())
def test_any_text_is_a_spec_or_refused(text: str) -> None:
    read_or_refuse(text)


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(quick, max_examples=400)
@given(st.sampled_from(sorted(make_spec().to_dict())), values, st.booleans())
def test_a_spec_with_any_other_value_is_a_spec_or_refused(name: str, value: Any, is_dropped: bool) -> None:
    content = make_spec().to_dict()
    if is_dropped:
        del content[name]
    else:
        content[name] = value
    read_or_refuse(json.dumps(content))
