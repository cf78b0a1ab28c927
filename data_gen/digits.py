"""Where the source digits come from, and how they are split: the bundled MNIST, or a folder of IDX files."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from data_gen.errors import DataError
from data_gen.idx import parse_idx, read_idx_bytes, unpack_idx
from data_gen.spec import NUM_CLASSES, SPLITS

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

VALID_SHARE = 12
"""One source training digit in twelve goes to the validation pool: 5,000 of MNIST's 60,000."""

_DIGIT_SPLIT_STREAM = 1000
"""First spawn key of the digit split's random stream; the splits' sample streams use 0, 1 and 2."""

_PARTS = ("train-images", "train-labels", "test-images", "test-labels")
_BUNDLED_FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}
_FILE_NAME = re.compile(
    r"(?:(?P<prefix>.+)-)?(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx\d-(?:ubyte|int)(?:\.(?:gz|xz))?"
)


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
    """

    train: DigitSet
    test: DigitSet
    name: str
    digest: str

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
        """Where each class starts in `class_order`, int64 (11,): class c is at [start[c], start[c + 1])."""
        return np.searchsorted(self.labels[self.class_order], np.arange(NUM_CLASSES + 1)).astype(np.int64)


def load_bundled() -> DigitSource:
    """Return MNIST from the copy inside this package; needs no network.

    Raises:
        DataError: a file is missing, or its sha256 is not the one in SHA256SUMS.
    """
    folder = _pack_folder()
    try:
        lines = (folder / "SHA256SUMS").read_text(encoding="ascii").splitlines()
        expected = {name: digest for digest, name in (line.split() for line in lines)}
        contents = {part: _read_bundled(folder, name, expected[name]) for part, name in _BUNDLED_FILES.items()}
    except DataError:
        raise
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"the bundled digits are incomplete ({error}); install the package again") from None
    return _build_source(contents, dict(_BUNDLED_FILES), "mnist")


def load_directory(path: str | os.PathLike[str]) -> DigitSource:
    """Return the digits in a folder that holds the four IDX files of MNIST, EMNIST-Digits, QMNIST or alike.

    Names are those that the data sets' authors use: `train-images-idx3-ubyte`, `t10k-labels.idx1-ubyte`,
    `emnist-digits-test-images-idx3-ubyte`, `qmnist-train-labels-idx2-int`, each raw, `.gz` or `.xz`. Where
    the same name is there raw and compressed, the raw file is read. Pixels stay as they are: EMNIST's are
    stored transposed.

    Raises:
        DataError: the folder or one of the files is missing or ambiguous, a file is damaged, or the digits
            are unsuitable: not square uint8, not one size, labels outside 0 to 9, fewer than two classes.
    """
    folder = Path(path)
    prefix, files = _find_files(folder)
    contents = {part: read_idx_bytes(file) for part, file in files.items()}
    names = {part: str(file) for part, file in files.items()}
    return _build_source(contents, names, prefix or folder.resolve().name or "idx")


def split_digits(source: DigitSource, seed: int) -> dict[str, DigitPool]:
    """Divide a source's digits among the splits, so that no digit is in two of them.

    One twelfth of the source's training digits, chosen by a seeded permutation, is the valid pool (more, if
    those were all of one class); the rest is the train pool; the source's test digits are the test pool.
    Pools keep the order of the source.

    Raises:
        DataError: there are too few training digits for two pools with two classes each.
    """
    stream = np.random.SeedSequence(seed, spawn_key=(_DIGIT_SPLIT_STREAM,))
    draws = np.random.Generator(np.random.Philox(stream)).random(len(source.train.labels))
    order = np.argsort(draws, kind="stable")
    labels = source.train.labels[order]
    first_other = int(np.argmax(labels != labels[0]))
    num_valid = max(len(order) // VALID_SHARE, first_other + 1)
    pools = {
        "train": _take(source.train, np.sort(order[num_valid:])),
        "valid": _take(source.train, np.sort(order[:num_valid])),
        "test": DigitPool(source.test.images, source.test.labels, np.arange(len(source.test.labels), dtype=np.int32)),
    }
    for split in SPLITS:
        if len(np.unique(pools[split].labels)) < 2:
            raise DataError(
                f"the digit source {source.name} has too few digits: its {split} split has fewer than two "
                "classes; use a source with more digits of each class"
            )
    return pools


def _pack_folder() -> Traversable:
    return importlib.resources.files("data_gen.pack")


def _read_bundled(folder: Traversable, name: str, expected: str) -> bytes:
    packed_name = f"{name}.xz"
    with (folder / packed_name).open("rb") as file:
        try:
            content = unpack_idx(cast(BinaryIO, file), packed_name)
        except DataError as error:
            raise DataError(f"the bundled digits are damaged: {error}; install the package again") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise DataError(
            f"the bundled digits are damaged: {packed_name} has sha256 {digest[:12]}..., "
            f"SHA256SUMS says {expected[:12]}...; install the package again"
        )
    return content


def _find_files(folder: Path) -> tuple[str, dict[str, Path]]:
    """Return the prefix that the four files share ("" for MNIST's own names), and the files by part."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; give the folder that holds the four IDX files")
    sets: dict[str, dict[str, Path]] = {}
    try:
        # Sorted, a raw file comes before its .gz and .xz, and the first of one name is kept.
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise DataError(f"{folder}: cannot be read ({error.strerror}); check its permissions") from None
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is None:
            continue
        split = "train" if match["split"] == "train" else "test"
        part = f"{split}-{match['kind']}"
        known = sets.setdefault(match["prefix"] or "", {}).setdefault(part, folder / name)
        if _strip_compression(known.name) != _strip_compression(name):
            raise DataError(f"{folder}: {known.name} and {name} could both be the {part}; keep one of them")
    complete = {prefix: files for prefix, files in sets.items() if len(files) == len(_PARTS)}
    if len(complete) > 1:
        found = ", ".join(sorted(prefix or "(no prefix)" for prefix in complete))
        raise DataError(f"{folder}: holds several sets of digits ({found}); give a folder with one of them")
    if not complete:
        raise DataError(_describe_missing(folder, sets))
    prefix, files = next(iter(complete.items()))
    return prefix, files


def _describe_missing(folder: Path, sets: Mapping[str, Mapping[str, Path]]) -> str:
    fullest = max(sets.values(), key=len, default={})
    missing = [_BUNDLED_FILES[part] for part in _PARTS if part not in fullest]
    return (
        f"{folder}: no {' and no '.join(missing)}; looked for {', '.join(_BUNDLED_FILES.values())}, "
        "also with '.idx' for '-idx', 'test' for 't10k', a prefix such as emnist-digits- or qmnist-, "
        "and .gz or .xz"
    )


def _strip_compression(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".xz")


def _build_source(contents: Mapping[str, bytes], names: Mapping[str, str], name: str) -> DigitSource:
    digest = hashlib.sha256()
    for part in _PARTS:
        digest.update(contents[part])
    train = _build_set(contents, names, "train")
    test = _build_set(contents, names, "test")
    if train.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"{names['test-images']}: digits of {test.images.shape[1]} px, but {names['train-images']} has "
            f"digits of {train.images.shape[1]} px; use files of one data set"
        )
    return DigitSource(train, test, name, digest.hexdigest())


def _build_set(contents: Mapping[str, bytes], names: Mapping[str, str], split: str) -> DigitSet:
    image_name, label_name = names[f"{split}-images"], names[f"{split}-labels"]
    images = parse_idx(contents[f"{split}-images"], image_name)
    labels = parse_idx(contents[f"{split}-labels"], label_name)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise DataError(
            f"{image_name}: holds {images.dtype} with {images.ndim} dimensions; digit images are uint8 with 3: "
            "use the file of the images"
        )
    height_px, width_px = images.shape[1:]
    if height_px != width_px or height_px == 0:
        raise DataError(f"{image_name}: images of {height_px}x{width_px} px; use a set of square digits")
    if labels.ndim == 2 and labels.dtype == np.int32 and labels.shape[1] >= 1:
        labels = labels[:, 0]  # QMNIST: (N, 8), the class comes first, then writer, position and the like
    elif labels.ndim != 1 or labels.dtype != np.uint8:
        raise DataError(
            f"{label_name}: holds {labels.dtype} with {labels.ndim} dimensions; labels are uint8 with 1 (or "
            "QMNIST's int32 with 2): use the file of the labels"
        )
    if len(images) != len(labels):
        raise DataError(
            f"{label_name}: {len(labels)} labels, but {image_name} has {len(images)} images; use files of one set"
        )
    if len(labels) == 0:
        raise DataError(f"{label_name}: holds no labels; use a file that has some")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= NUM_CLASSES:
        raise DataError(
            f"{label_name}: labels from {low} to {high}; only the ten classes 0 to 9 are supported: use a set "
            "of ten classes"
        )
    if low == high:
        raise DataError(f"{label_name}: every label is {low}; overlays need at least two classes")
    return DigitSet(cast("NDArray[np.uint8]", images), labels.astype(np.uint8))


def _take(digits: DigitSet, rows: NDArray[np.int64]) -> DigitPool:
    return DigitPool(digits.images[rows], digits.labels[rows], rows.astype(np.int32))
