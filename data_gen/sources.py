"""Where the source digits come from: the bundled MNIST, or a folder of IDX files."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitSet, DigitSource
from data_gen.errors import DataError
from data_gen.idx import parse_idx, read_idx_bytes, unpack_idx
from data_gen.spec import MAX_CLASSES

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable

_PARTS = ("train-images", "train-labels", "test-images", "test-labels")
_BUNDLED_FILES = {
    "train-images": "train-images-idx3-ubyte",
    "train-labels": "train-labels-idx1-ubyte",
    "test-images": "t10k-images-idx3-ubyte",
    "test-labels": "t10k-labels-idx1-ubyte",
}
_UNNAMED = "idx"
"""Name of digits whose files have no prefix; not the folder's, or copies of it would give files that differ."""

_MAX_MAPPING_CHARS = 10_000
_FILE_NAME = re.compile(
    r"(?:(?P<prefix>.+)-)?(?P<split>train|t10k|test)-(?P<kind>images|labels)[-.]idx\d-(?:ubyte|int)(?:\.(?:gz|xz))?"
)


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
    """Return the digits in a folder that holds the four IDX files of MNIST, EMNIST (any of its sets), QMNIST or alike.

    Names are those that the data sets' authors use: `train-images-idx3-ubyte`, `t10k-labels.idx1-ubyte`,
    `emnist-digits-test-images-idx3-ubyte`, `qmnist-train-labels-idx2-int`, each raw, `.gz` or `.xz`. Where
    the same name is there raw and compressed, the raw file is read. Pixels stay as they are: EMNIST's are
    stored transposed. The classes are the labels that there are: ten where all are 0 to 9, else one for each distinct
    label of the training file, from the lowest up, named by EMNIST's mapping file where there is one.

    Raises:
        DataError: the folder or one of the files is missing or ambiguous, a file is damaged, or the digits
            are unsuitable: not square uint8, not one size, fewer than two classes or too many, test labels that
            training has not.
    """
    folder = Path(path)
    prefix, files = _find_files(folder)
    contents = {part: read_idx_bytes(file) for part, file in files.items()}
    names = {part: str(file) for part, file in files.items()}
    # EMNIST's mapping lies beside its files, `emnist-letters-mapping.txt`; sets without one have numbers for names.
    mapping = _read_mapping(folder / (f"{prefix}-mapping.txt" if prefix else "mapping.txt"))
    # A file name may hold bytes that are no text.
    # As the file format wants a name; bytes of a file name that are no text are not printable either.
    name = "".join(char if char.isprintable() else "?" for char in prefix) or _UNNAMED
    return _build_source(contents, names, name, mapping)


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


def _build_source(
    contents: Mapping[str, bytes], names: Mapping[str, str], name: str, mapping: Mapping[int, str] | None = None
) -> DigitSource:
    """Check the four files and number their classes: the distinct labels of the training file, from the lowest up."""
    digest = hashlib.sha256()
    for part in _PARTS:
        digest.update(contents[part])
    train_images, train_labels = _parse_set(contents, names, "train")
    test_images, test_labels = _parse_set(contents, names, "test")
    if train_images.shape[1:] != test_images.shape[1:]:
        raise DataError(
            f"{names['test-images']}: digits of {test_images.shape[1]} px, but {names['train-images']} has "
            f"digits of {train_images.shape[1]} px; use files of one data set"
        )
    values = np.unique(train_labels)
    if len(values) > MAX_CLASSES:
        raise DataError(
            f"{names['train-labels']}: labels of {len(values)} classes; at most {MAX_CLASSES} are supported: use a set "
            "of fewer classes"
        )
    foreign = np.setdiff1d(test_labels, values)
    if len(foreign):
        raise DataError(
            f"{names['test-labels']}: label {int(foreign[0])} is not among those of {names['train-labels']}; use files "
            "of one data set"
        )
    if mapping is None and set(values.tolist()) <= set(range(10)):
        # A digit that the training file lacks keeps its number: label 7 stays class 7.
        values = np.arange(10)
    class_names = tuple((mapping or {}).get(int(value), str(value)) for value in values)
    if len(set(class_names)) != len(class_names):
        raise DataError(
            f"{names['train-labels']}: the mapping beside it lacks labels, and gives a class the name of another; mend "
            "it, or move it away: classes are then named by their labels"
        )
    return DigitSource(
        train=DigitSet(train_images, np.searchsorted(values, train_labels).astype(np.uint8)),
        test=DigitSet(test_images, np.searchsorted(values, test_labels).astype(np.uint8)),
        name=name,
        digest=digest.hexdigest(),
        class_names=class_names,
    )


def _read_mapping(path: Path) -> dict[int, str] | None:
    """Return the names of classes by label from a mapping file as EMNIST has it, if there is one.

    Each of its lines is a label and one or more code points of the characters that it stands for (`1 65 97`: A and a);
    the first of them names the class.
    """
    if not path.is_file():
        return None
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(_MAX_MAPPING_CHARS + 1)
        if len(text) > _MAX_MAPPING_CHARS:
            raise ValueError("it is too long")
        rows = [[int(number) for number in line.split()] for line in text.splitlines() if line.strip()]
        names = {label: chr(code) for label, code, *_ in rows}
        is_plain = all(name.isprintable() for name in names.values())
        if not is_plain or len(names) != len(rows) or len(set(names.values())) != len(rows):
            raise ValueError("a label or a name is there twice, or a name cannot be printed")
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: not a mapping from labels to characters ({error}); mend it, or move it away: classes are then "
            "named by their labels"
        ) from None
    return names


def _parse_set(
    contents: Mapping[str, bytes], names: Mapping[str, str], split: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the images (M, h, w) and the labels (M,) of a set, as they are in its files."""
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
    if low < 0:
        raise DataError(f"{label_name}: labels from {low} to {high}; labels are 0 or more: use the file of the labels")
    if low == high:
        raise DataError(f"{label_name}: every label is {low}; overlays need at least two classes")
    return cast("NDArray[np.uint8]", images), labels.astype(np.int64)
