"""Every choice that makes a dataset, in one validated, serialisable value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from data_gen.counts import MAX_DIGITS, Weight, choose_count_weights
from data_gen.errors import DataError, show_value
from data_gen.merging import get_merge
from data_gen.protocols import get_protocol

SPLITS: tuple[str, ...] = ("train", "valid", "test")
"""Split names; a split's place in this tuple is its number in the random streams, so the order is fixed."""

MAX_CLASSES = 128
"""Most classes of digits: a class is stored as int8."""

DIGIT_NAMES: tuple[str, ...] = tuple("0123456789")
"""Names of the classes of MNIST and of every set whose labels are 0 to 9."""

_MAX_SEED = 2**63 - 1
_MAX_SAMPLES = 100_000_000
_MAX_CANVAS_PX = 256  # one block of samples then stays below 64 MiB per layer
_MAX_SHIFT_PX = 127  # offsets are stored as int8
_MAX_NAME_CHARS = 32
_MAX_JSON_CHARS = 65_536

_OPTIONS = {
    "seed": "--seed",
    "num_train": "--train",
    "num_valid": "--valid",
    "num_test": "--test",
    "max_shift_px": "--max-shift",
    "canvas_px": "--canvas",
    "digit_px": "the digit size",
}


@dataclass(frozen=True)
class OverlaySpec:
    """A dataset's choices. Together with a digit source it determines every sample.

    Attributes:
        protocol: the named defaults that the choices started from, a name in `PROTOCOLS`.
        seed: of the digit split and of every sample, 0 to 2^63 - 1.
        num_train: number of training samples, at least 1.
        num_valid: number of validation samples, at least 1.
        num_test: number of test samples, at least 1.
        count_weights: probabilities that a sample shows 1, 2, ... K digits; K, their number, is 1 to 4. They add up
            to 1.
        max_shift_px: largest shift of a digit from the centre, in y and in x.
        canvas_px: height and width of a sample, at least digit_px + 2 max_shift_px: digits are never cut off.
        merge: a name in `MERGES`.
        min_overlap: smallest overlap (see `SampleBlock`) of a sample with two digits or more, 0 to 1.
        max_overlap: largest overlap of a sample, min_overlap to 1.
        digit_px: height and width of a source digit.
        class_names: names of the classes, 2 to 128 different ones; their number is that of the labels.

    Raises:
        DataError: a value has the wrong type or is out of range; the message names the option.
    """

    protocol: str
    seed: int
    num_train: int
    num_valid: int
    num_test: int
    count_weights: tuple[float, ...]
    max_shift_px: int
    canvas_px: int
    merge: str
    min_overlap: float = 0.0
    max_overlap: float = 1.0
    digit_px: int = 28
    class_names: tuple[str, ...] = DIGIT_NAMES

    def __post_init__(self) -> None:
        """Check every value."""
        _require_str("--protocol", self.protocol)
        get_protocol(self.protocol)
        _require_str("--merge", self.merge)
        get_merge(self.merge)
        _require_int("seed", self.seed, 0, _MAX_SEED)
        for split in SPLITS:
            _require_int(f"num_{split}", self.num_samples(split), 1, _MAX_SAMPLES)
        _require_int("digit_px", self.digit_px, 1, _MAX_CANVAS_PX)
        _require_int("max_shift_px", self.max_shift_px, 0, _MAX_SHIFT_PX)
        _require_int("canvas_px", self.canvas_px, 1, _MAX_CANVAS_PX)
        object.__setattr__(self, "count_weights", _check_weights(self.count_weights))
        object.__setattr__(self, "min_overlap", _check_share("--overlap", self.min_overlap))
        object.__setattr__(self, "max_overlap", _check_share("--overlap", self.max_overlap))
        object.__setattr__(self, "class_names", _check_class_names(self.class_names))
        self._check_geometry()
        self._check_overlap()

    def _check_geometry(self) -> None:
        needed_px = self.digit_px + 2 * self.max_shift_px
        if self.canvas_px >= needed_px:
            return
        remedies = []
        if needed_px <= _MAX_CANVAS_PX:
            remedies.append(f"--canvas {needed_px}")
        if self.canvas_px >= self.digit_px:
            remedies.append(f"--max-shift {(self.canvas_px - self.digit_px) // 2}")
        remedy = " or ".join(remedies) or "a smaller --max-shift and a larger --canvas"
        raise DataError(
            f"--canvas {self.canvas_px} is too small: digits of {self.digit_px} px with shifts up to "
            f"{self.max_shift_px} px need at least {needed_px}; use {remedy}"
        )

    def _check_overlap(self) -> None:
        low, high = self.min_overlap, self.max_overlap
        if low > high:
            raise DataError(f"--overlap {low:g}:{high:g} is upside down; use {high:g}:{low:g}")
        if self.bounds_overlap and self.most_digits == 1:
            raise DataError("--overlap: every sample shows one digit, and one digit overlaps nothing; leave it out")
        if self.most_digits > len(self.class_names):
            raise DataError(
                f"{self.most_digits} digits of different classes need as many classes, but the digits have "
                f"{len(self.class_names)}; use --max-digits {len(self.class_names)}"
            )

    @property
    def max_digits(self) -> int:
        """K: places for digits in a sample, 1 to 4."""
        return len(self.count_weights)

    @property
    def most_digits(self) -> int:
        """The largest number of digits that a sample really can show: the last with a probability above 0."""
        return max(count for count, weight in enumerate(self.count_weights, start=1) if weight > 0)

    @property
    def num_classes(self) -> int:
        """Number of classes, and of labels of a sample."""
        return len(self.class_names)

    @property
    def bounds_overlap(self) -> bool:
        """Whether the range of overlaps leaves anything out."""
        return self.min_overlap > 0 or self.max_overlap < 1

    def num_samples(self, split: str) -> int:
        """Return the number of samples of `split`, one of `SPLITS`."""
        return {"train": self.num_train, "valid": self.num_valid, "test": self.num_test}[check_split(split)]

    def to_dict(self) -> dict[str, Any]:
        """Return the choices as plain JSON values, in the order of the fields."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def to_json(self) -> str:
        """Return the choices as one line of JSON; equal specs give equal text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OverlaySpec:
        """Build a spec from what `to_dict` returned.

        Raises:
            DataError: not a mapping, a key is missing or unknown, or a value is refused.
        """
        if not isinstance(values, Mapping):
            raise DataError("the spec is not a JSON object; generate the file again")
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in values]
        unknown = [show_value(key) for key in values if key not in names]
        if missing:
            raise DataError(f"the spec lacks {', '.join(missing)}; generate the file again")
        if unknown:
            raise DataError(
                f"the spec has unknown keys: {', '.join(unknown[:5])}; "
                "it may come from a newer version: upgrade, or generate the file again"
            )
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> OverlaySpec:
        """Build a spec from what `to_json` returned.

        Raises:
            DataError: not valid JSON, a repeated key, or anything that `from_dict` refuses.
        """
        if len(text) > _MAX_JSON_CHARS:
            raise DataError(f"the spec has {len(text)} characters, over {_MAX_JSON_CHARS}; generate the file again")
        try:
            values = json.loads(text, object_pairs_hook=_collect_unique)
        except DataError:
            raise
        except (ValueError, RecursionError) as error:
            reason = _first_line(error)
            raise DataError(f"the spec is not valid JSON ({reason}); generate the file again") from None
        return cls.from_dict(values)


def make_spec(
    protocol: str = "diverse",
    *,
    seed: int | None = None,
    num_train: int | None = None,
    num_valid: int | None = None,
    num_test: int | None = None,
    single_fraction: float | None = None,
    max_digits: int | None = None,
    count_weights: Mapping[int, Weight] | None = None,
    max_shift_px: int | None = None,
    canvas_px: int | None = None,
    merge: str | None = None,
    overlap: tuple[float, float] | None = None,
    digit_px: int | None = None,
    class_names: tuple[str, ...] | None = None,
) -> OverlaySpec:
    """Build a spec from a protocol's defaults; None means the default.

    Seed 0 and 60,000 / 5,000 / 10,000 samples are the defaults that do not depend on the protocol. Numbers of
    digits are chosen either by `count_weights`, from number to weight (of any sum), or by `single_fraction`, the
    share of samples with one digit; then 2 to `max_digits` digits share the rest equally.

    Raises:
        DataError: as `OverlaySpec`, or the protocol is unknown, or choices exclude each other.
    """
    defaults = get_protocol(protocol)
    low, high = (0.0, 1.0) if overlap is None else overlap
    return OverlaySpec(
        protocol=protocol,
        seed=_or_default(seed, 0),
        num_train=_or_default(num_train, 60_000),
        num_valid=_or_default(num_valid, 5_000),
        num_test=_or_default(num_test, 10_000),
        count_weights=choose_count_weights(defaults.single_fraction, single_fraction, max_digits, count_weights),
        max_shift_px=_or_default(max_shift_px, defaults.max_shift_px),
        canvas_px=_or_default(canvas_px, defaults.canvas_px),
        merge=defaults.merge if merge is None else merge,
        min_overlap=low,
        max_overlap=high,
        digit_px=_or_default(digit_px, 28),
        class_names=DIGIT_NAMES if class_names is None else class_names,
    )


def check_split(split: str) -> str:
    """Return `split` if it is one of `SPLITS`, else raise DataError."""
    if split not in SPLITS:
        raise DataError(f"there is no split {split!r}; choose from: {', '.join(SPLITS)}")
    return split


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


def _require_str(option: str, value: object) -> None:
    if not isinstance(value, str):
        raise DataError(f"{option} must be a name, not {show_value(value)}")


def _require_int(name: str, value: object, low: int, high: int) -> None:
    option = _OPTIONS[name]
    if type(value) is not int:  # bool is an int, and True is no seed
        raise DataError(f"{option} must be a whole number, not {show_value(value)}")
    if not low <= value <= high:
        raise DataError(f"{option} {show_value(value)} is out of range; use {low} to {high}")


def _check_weights(values: object) -> tuple[float, ...]:
    if not isinstance(values, tuple | list) or not 1 <= len(values) <= MAX_DIGITS:
        raise DataError(f"--count-weights must be 1 to {MAX_DIGITS} numbers, not {show_value(values)}")
    weights = tuple(_check_share("--count-weights", value) for value in values)
    if abs(math.fsum(weights) - 1) > 1e-9:
        raise DataError(f"--count-weights {show_value(values)} add up to {math.fsum(weights):g}; they must add up to 1")
    return weights


def _check_share(option: str, value: object) -> float:
    if type(value) not in (int, float):
        raise DataError(f"{option} must be a number, not {show_value(value)}")
    assert isinstance(value, (int, float))
    if not 0 <= value <= 1 or not math.isfinite(value):
        raise DataError(f"{option} {show_value(value)} is out of range; use 0 to 1")
    return float(value)


def _check_class_names(values: object) -> tuple[str, ...]:
    if not isinstance(values, tuple | list) or not 2 <= len(values) <= MAX_CLASSES:
        raise DataError(f"the class names must be 2 to {MAX_CLASSES} texts, not {show_value(values)}")
    for value in values:
        if not isinstance(value, str) or not 1 <= len(value) <= _MAX_NAME_CHARS or not value.isprintable():
            raise DataError(f"the class name {show_value(value)} is not a text of 1 to {_MAX_NAME_CHARS} characters")
    if len(set(values)) != len(values):
        raise DataError(f"two classes have the same name in {show_value(values)}")
    return tuple(values)


def _collect_unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise DataError("the spec repeats a key; generate the file again")
    return values


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
