"""Make small digit sources and specs, and write sources as IDX files."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_gen.digits import DigitPool, DigitSet, DigitSource
from data_gen.spec import DIGIT_NAMES, OverlaySpec, make_spec

DIGIT_PX = 6
_CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def make_source(
    num_train: int = 240,
    num_test: int = 60,
    digit_px: int = DIGIT_PX,
    class_names: tuple[str, ...] = DIGIT_NAMES,
) -> DigitSource:
    """Random digits, about half of their pixels inked, with all classes in turn."""
    rng = np.random.default_rng(7)

    def make_set(num: int) -> DigitSet:
        ink = rng.random((num, digit_px, digit_px)) < 0.5
        images = (rng.integers(1, 256, ink.shape) * ink).astype(np.uint8)
        return DigitSet(images, rng.permutation(np.arange(num) % len(class_names)).astype(np.uint8))

    train, test = make_set(num_train), make_set(num_test)
    contents = b"".join(encode_idx(values) for values in list_parts(train, test))
    return DigitSource(train, test, "tiny", hashlib.sha256(contents).hexdigest(), class_names)


def make_pool(images: NDArray[np.uint8], labels: list[int]) -> DigitPool:
    """A pool whose digits are the first of their file."""
    return DigitPool(images, np.array(labels, np.uint8), np.arange(len(labels), dtype=np.int32))


def make_tiny_spec(**changes: Any) -> OverlaySpec:
    """A spec for `make_source`: 12 px canvas, shifts up to 3 px, 30 / 10 / 20 samples."""
    choices = {"num_train": 30, "num_valid": 10, "num_test": 20, "canvas_px": 12, "max_shift_px": 3}
    return make_spec(**{"digit_px": DIGIT_PX, **choices, **changes})


def list_parts(train: DigitSet, test: DigitSet) -> list[NDArray[Any]]:
    """The arrays of the four IDX files, in the order of `NAMES`."""
    return [train.images, train.labels, test.images, test.labels]


def encode_idx(values: NDArray[Any]) -> bytes:
    """The bytes of an IDX file, written from the format's definition."""
    head = bytes([0, 0, _CODES[values.dtype.name], values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write_folder(folder: Path, source: DigitSource, suffix: str = "", names: tuple[str, ...] = NAMES) -> Path:
    """Write a source as four IDX files, packed as `suffix` says."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in zip(names, list_parts(source.train, source.test), strict=True):
        (folder / f"{name}{suffix}").write_bytes(PACKERS[suffix](encode_idx(values)))
    return folder
