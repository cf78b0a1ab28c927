from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from data_gen.errors import DataError
from data_gen.spec import OverlaySpec, make_spec


def test_defaults_are_those_of_the_protocol() -> None:
    spec = make_spec("multimnist", seed=None, merge=None)
    assert (spec.count_weights, spec.max_shift_px, spec.canvas_px, spec.merge) == ((0.0, 1.0), 4, 36, "clip")
    assert (spec.min_overlap, spec.max_overlap, spec.class_names) == (0.0, 1.0, tuple("0123456789"))
    assert (spec.seed, spec.num_train, spec.num_valid, spec.num_test, spec.digit_px) == (0, 60_000, 5_000, 10_000, 28)
    assert make_spec().protocol == "diverse"
    assert make_spec().count_weights == (1 / 6, 5 / 6)


def test_an_override_of_zero_is_not_taken_for_none() -> None:
    spec = make_spec(single_fraction=0, max_shift_px=0)
    assert (spec.count_weights, spec.max_shift_px) == ((0.0, 1.0), 0)


def test_json_round_trip_is_exact() -> None:
    spec = make_spec(seed=2**63 - 1, single_fraction=0.1, merge="mean")
    assert OverlaySpec.from_json(spec.to_json()) == spec
    assert OverlaySpec.from_dict(spec.to_dict()) == spec
    assert make_spec(single_fraction=1).to_json() == make_spec(single_fraction=1.0).to_json()
    fields: dict[str, Any] = {
        "count_weights": (0.5, 0.0, 0.25, 0.25),
        "class_names": tuple("abcdé"),
        "max_overlap": 0.125,
    }
    spec = replace(make_spec(), **fields)
    assert OverlaySpec.from_json(spec.to_json()) == spec
    assert isinstance(OverlaySpec.from_json(spec.to_json()).count_weights, tuple)
    assert isinstance(OverlaySpec.from_json(spec.to_json()).class_names, tuple)


def test_numbers_of_one_value_give_one_text() -> None:
    whole = replace(make_spec(), count_weights=(0, 1), min_overlap=0, max_overlap=1)
    assert whole == replace(make_spec(), count_weights=(0.0, 1.0))
    assert whole.to_json() == make_spec(single_fraction=0).to_json()


def test_the_places_for_digits_and_the_most_digits_are_told_apart() -> None:
    spec = replace(make_spec(), count_weights=(0.5, 0.25, 0.25, 0.0))
    assert (spec.max_digits, spec.most_digits, spec.num_classes) == (4, 3, 10)
    assert not spec.bounds_overlap
    assert replace(spec, max_overlap=0.999).bounds_overlap
    assert replace(spec, min_overlap=0.001).bounds_overlap


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"canvas_px": 30},
            "--canvas 30 is too small: digits of 28 px with shifts up to 4 px need at least 36; "
            "use --canvas 36 or --max-shift 1",
        ),
        ({"canvas_px": 20}, "use --canvas 36"),
        ({"max_shift_px": 127}, "use --max-shift 4"),
        ({"canvas_px": 257}, "--canvas 257 is out of range; use 1 to 256"),
        ({"max_shift_px": -1}, "--max-shift -1 is out of range; use 0 to 127"),
        ({"seed": -1}, "--seed -1 is out of range"),
        ({"seed": True}, "--seed must be a whole number, not True"),
        ({"seed": 1.0}, "--seed must be a whole number, not 1.0"),
        ({"num_train": 0}, "--train 0 is out of range"),
        ({"num_valid": 10**9}, "--valid 1000000000 is out of range"),
        ({"num_test": -5}, "--test -5 is out of range"),
        ({"single_fraction": 1.5}, "--single-fraction 1.5 is out of range; use 0 to 1"),
        ({"single_fraction": float("nan")}, "--single-fraction nan is out of range"),
        ({"single_fraction": "half"}, "--single-fraction must be a number, not 'half'"),
        ({"merge": "men"}, "--merge 'men' is unknown; did you mean mean? Choose from: clip, max, mean"),
        ({"merge": 3}, "--merge must be a name, not 3"),
        ({"protocol": "diverze"}, "--protocol 'diverze' is unknown; did you mean diverse?"),
        ({"overlap": (0.6, 0.4)}, "--overlap 0.6:0.4 is upside down; use 0.4:0.6"),
        ({"overlap": (-0.1, 1)}, "--overlap -0.1 is out of range; use 0 to 1"),
        ({"overlap": (0, 1.5)}, "--overlap 1.5 is out of range; use 0 to 1"),
        ({"overlap": (float("nan"), 1)}, "--overlap nan is out of range"),
        ({"overlap": (0, "1")}, "--overlap must be a number, not '1'"),
        ({"overlap": (False, 1)}, "--overlap must be a number, not False"),
        ({"overlap": (0.1, 1), "max_digits": 1}, "--overlap: every sample shows one digit"),
        ({"overlap": (0, 0.5), "single_fraction": 1}, "--overlap: every sample shows one digit"),
        (
            {"max_digits": 4, "class_names": ("a", "b", "c")},
            "4 digits of different classes need as many classes, but the digits have 3; use --max-digits 3",
        ),
        ({"class_names": ("a",)}, "the class names must be 2 to 128 texts, not ('a',)"),
        ({"class_names": tuple(map(str, range(129)))}, "the class names must be 2 to 128 texts"),
        ({"class_names": "0123456789"}, "the class names must be 2 to 128 texts, not '0123456789'"),
        ({"class_names": ("a", "")}, "the class name '' is not a text of 1 to 32 characters"),
        ({"class_names": ("a", "b" * 33)}, "is not a text of 1 to 32 characters"),
        ({"class_names": ("a", "b\n")}, "the class name 'b\\n' is not a text"),
        ({"class_names": ("a", "\x1b[31m")}, "the class name '\\x1b[31m' is not a text"),
        ({"class_names": ("a", 1)}, "the class name 1 is not a text"),
        ({"class_names": ("a", "b", "a")}, "two classes have the same name in ('a', 'b', 'a')"),
    ],
)
def test_a_refused_value_names_its_option(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        make_spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((), "--count-weights must be 1 to 4 numbers, not ()"),
        ((0.2,) * 5, "--count-weights must be 1 to 4 numbers, not (0.2, 0.2"),
        ({1: 1.0}, "--count-weights must be 1 to 4 numbers, not {1: 1.0}"),
        ("11", "--count-weights must be 1 to 4 numbers, not '11'"),
        ((0.5, 0.25), "--count-weights (0.5, 0.25) add up to 0.75; they must add up to 1"),
        ((0.5, 0.6), "add up to 1.1"),
        ((0.0, 0.0), "add up to 0;"),
        ((1.5, -0.5), "--count-weights 1.5 is out of range; use 0 to 1"),
        ((float("nan"), 1.0), "--count-weights nan is out of range"),
        ((True, 0.0), "--count-weights must be a number, not True"),
        (("1",), "--count-weights must be a number, not '1'"),
    ],
)
def test_refused_count_weights_name_their_option(values: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        replace(make_spec(), count_weights=values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(DataError, match="no split 'dev'; choose from: train, valid, test"):
        make_spec().num_samples("dev")


def _altered(**changes: Any) -> str:
    return json.dumps({**make_spec().to_dict(), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[" * 50_000, "not valid JSON"),
        ("1" * 5_000, "not"),
        ("[]", "not a JSON object"),
        ('{"seed": 0, "seed": 1}', "repeats a key"),
        (" " * 70_000, "characters"),
        (_altered(extra=1), "unknown keys: 'extra'"),
        (json.dumps({k: v for k, v in make_spec().to_dict().items() if k != "seed"}), "lacks seed"),
        (_altered(seed=int("9" * 4_000)), "--seed (a number of more than 256 bits) is out of range"),
        (_altered(count_weights=[float("nan"), 1]), "--count-weights nan"),
        (_altered(count_weights=[float("inf")]), "--count-weights inf"),
        (_altered(count_weights=[int("9" * 4_000)]), "--count-weights (a number of more than 256 bits)"),
        (_altered(count_weights=[int("9" * 4_000)] * 5), "--count-weights must be 1 to 4 numbers"),
        (_altered(count_weights={"1": 1}), "--count-weights must be 1 to 4 numbers"),
        (_altered(max_overlap=None), "--overlap must be a number, not None"),
        (_altered(class_names=["a", "\ud800"]), "the class name '\\ud800' is not a text"),
        (_altered(class_names=["a", ["b" * 500]]), "the class name ['bbb"),
        (_altered(**{"a\nb\x1b[31m": 1}), "unknown keys: "),
        (_altered(**{"k" * 500: 1}), "unknown keys: 'kkk"),
        (json.dumps({"single_fraction": 0.5}), "the spec lacks protocol"),
        (_altered(canvas_px=[36]), "--canvas must be a whole number"),
        (_altered(protocol={"a": "b" * 500}), "--protocol must be a name"),
        (_altered(merge="\ud800"), "--merge"),
    ],
)
def test_hostile_json_is_refused_in_one_short_line(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        OverlaySpec.from_json(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ["count_weights", "class_names", "merge", "seed"])
def test_nested_lists_of_any_depth_are_refused(key: str) -> None:
    values = make_spec().to_dict()
    del values[key]
    start = json.dumps(values)[:-1]
    # Near the interpreter's limit, a text that can still be parsed may be too deep to be shown.
    for depth in [*range(1, 100, 9), *range(800, 1010)]:
        with pytest.raises(DataError):
            OverlaySpec.from_json(f'{start}, "{key}": {"[" * depth}{"]" * depth}}}')
