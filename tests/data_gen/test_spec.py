from __future__ import annotations

import json
from typing import Any

import pytest

from data_gen.errors import DataError
from data_gen.spec import OverlaySpec, make_spec


def test_defaults_are_those_of_the_protocol() -> None:
    spec = make_spec("multimnist", seed=None, merge=None)
    assert (spec.single_fraction, spec.max_shift_px, spec.canvas_px, spec.merge) == (0.0, 4, 36, "clip")
    assert (spec.seed, spec.num_train, spec.num_valid, spec.num_test, spec.digit_px) == (0, 60_000, 5_000, 10_000, 28)
    assert make_spec().protocol == "diverse"
    assert make_spec().single_fraction == 1 / 6


def test_an_override_of_zero_is_not_taken_for_none() -> None:
    spec = make_spec(single_fraction=0, max_shift_px=0)
    assert (spec.single_fraction, spec.max_shift_px) == (0.0, 0)


def test_json_round_trip_is_exact() -> None:
    spec = make_spec(seed=2**63 - 1, single_fraction=0.1, merge="mean")
    assert OverlaySpec.from_json(spec.to_json()) == spec
    assert OverlaySpec.from_dict(spec.to_dict()) == spec
    assert make_spec(single_fraction=1).to_json() == make_spec(single_fraction=1.0).to_json()


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
    ],
)
def test_a_refused_value_names_its_option(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        make_spec(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
        (_altered(extra=1), "unknown keys: extra"),
        (json.dumps({k: v for k, v in make_spec().to_dict().items() if k != "seed"}), "lacks seed"),
        (_altered(seed=int("9" * 4_000)), "--seed (a number of more than 256 bits) is out of range"),
        (_altered(single_fraction=float("nan")), "--single-fraction nan"),
        (_altered(single_fraction=float("inf")), "--single-fraction inf"),
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
