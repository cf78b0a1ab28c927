from __future__ import annotations

import hashlib
import lzma
import shutil
from pathlib import Path

import numpy as np
import pytest

import data_gen.pack
from data_gen import digits
from data_gen.digits import DigitSet, DigitSource, load_bundled, load_directory, split_digits
from data_gen.errors import DataError
from tests.data_gen.sources import NAMES, PACKERS, encode_idx, list_parts, make_source, write_folder

PACK = Path(data_gen.pack.__path__[0])


def _same(first: DigitSource, second: DigitSource) -> bool:
    pairs = zip(list_parts(first.train, first.test), list_parts(second.train, second.test), strict=True)
    return first.digest == second.digest and all(np.array_equal(a, b) for a, b in pairs)


def test_the_bundled_digits_are_mnist(mnist: DigitSource) -> None:
    assert mnist.train.images.shape == (60_000, 28, 28)
    assert mnist.test.images.shape == (10_000, 28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(mnist.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.digit_px == 28
    assert mnist.name == "mnist"


def test_the_digest_is_that_of_the_four_files_one_after_the_other(mnist: DigitSource) -> None:
    contents = b"".join(encode_idx(values) for values in list_parts(mnist.train, mnist.test))
    assert mnist.digest == hashlib.sha256(contents).hexdigest()


def _make_pack(folder: Path, source: DigitSource) -> Path:
    """A pack like the bundled one, of a small source."""
    write_folder(folder, source, ".xz")
    digests = [
        f"{hashlib.sha256(encode_idx(values)).hexdigest()}  {name}"
        for name, values in zip(NAMES, list_parts(source.train, source.test), strict=True)
    ]
    (folder / "SHA256SUMS").write_text("\n".join(digests) + "\n")
    return folder


def test_the_bundled_digests_are_the_published_ones(mnist: DigitSource) -> None:
    listed = (PACK / "SHA256SUMS").read_text().split()
    contents = [encode_idx(values) for values in list_parts(mnist.train, mnist.test)]
    assert {hashlib.sha256(content).hexdigest() for content in contents} == set(listed[::2])
    assert set(listed[1::2]) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_byte_in_the_bundled_digits_is_refused(
    name: str, tiny: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _make_pack(tmp_path, tiny)
    monkeypatch.setattr(digits, "_pack_folder", lambda: folder)
    assert _same(load_bundled(), tiny)
    packed = folder / f"{name}.xz"
    content = bytearray(lzma.decompress(packed.read_bytes()))
    content[-1] ^= 1
    packed.write_bytes(lzma.compress(bytes(content)))
    with pytest.raises(DataError, match=f"damaged: {name}.xz has sha256 .* install the package again"):
        load_bundled()


def test_a_bundled_file_that_is_cut_off_or_missing_is_refused(
    tiny: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _make_pack(tmp_path, tiny)
    monkeypatch.setattr(digits, "_pack_folder", lambda: folder)
    packed = folder / f"{NAMES[2]}.xz"
    packed.write_bytes(packed.read_bytes()[:-40])
    with pytest.raises(DataError, match=rf"{NAMES[2]}\.xz: damaged or cut off .* install the package again"):
        load_bundled()
    packed.unlink()
    with pytest.raises(DataError, match=rf"incomplete .*{NAMES[2]}\.xz.* install the package again"):
        load_bundled()


@pytest.mark.parametrize("suffix", PACKERS)
def test_raw_and_packed_folders_load_equal(suffix: str, tiny: DigitSource, tmp_path: Path) -> None:
    loaded = load_directory(write_folder(tmp_path / "my-digits", tiny, suffix))
    assert _same(loaded, tiny)
    assert loaded.name == "my-digits"


@pytest.mark.parametrize(
    ("names", "source_name"),
    [
        (tuple(name.replace("-idx", ".idx") for name in NAMES), "folder"),
        (tuple(f"emnist-digits-{name.replace('t10k', 'test')}" for name in NAMES), "emnist-digits"),
    ],
)
def test_the_usual_names_are_found(names: tuple[str, ...], source_name: str, tiny: DigitSource, tmp_path: Path) -> None:
    loaded = load_directory(write_folder(tmp_path / "folder", tiny, ".gz", names))
    assert _same(loaded, tiny)
    assert loaded.name == source_name


def test_qmnist_labels_are_the_first_column(tiny: DigitSource, tmp_path: Path) -> None:
    for split, digit_set in (("train", tiny.train), ("test", tiny.test)):
        table = np.zeros((len(digit_set.labels), 8), np.int32)
        table[:, 0] = digit_set.labels
        table[:, 2] = 3600  # a writer: out of the range of classes
        (tmp_path / f"qmnist-{split}-images-idx3-ubyte").write_bytes(encode_idx(digit_set.images))
        (tmp_path / f"qmnist-{split}-labels-idx2-int").write_bytes(encode_idx(table))
    loaded = load_directory(tmp_path)
    assert np.array_equal(loaded.train.labels, tiny.train.labels)
    assert loaded.test.labels.dtype == np.uint8
    assert loaded.name == "qmnist"


def test_raw_is_preferred_to_the_same_name_packed(tiny: DigitSource, tmp_path: Path) -> None:
    write_folder(tmp_path, tiny)
    (tmp_path / f"{NAMES[0]}.gz").write_bytes(b"left over from an interrupted download")
    assert _same(load_directory(tmp_path), tiny)


def test_missing_files_are_listed(tiny: DigitSource, tmp_path: Path) -> None:
    write_folder(tmp_path, tiny)
    (tmp_path / NAMES[3]).unlink()
    with pytest.raises(DataError) as caught:
        load_directory(tmp_path)
    assert f"{tmp_path}: no {NAMES[3]}; looked for {', '.join(NAMES)}" in str(caught.value)
    with pytest.raises(DataError, match="no such folder"):
        load_directory(tmp_path / "absent")


def test_ambiguous_files_are_refused(tiny: DigitSource, tmp_path: Path) -> None:
    write_folder(tmp_path / "a", tiny)
    shutil.copy(tmp_path / "a" / NAMES[2], tmp_path / "a" / "test-images-idx3-ubyte")
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte and test-images-idx3-ubyte could both be"):
        load_directory(tmp_path / "a")
    write_folder(tmp_path / "b", tiny)
    write_folder(tmp_path / "b", tiny, names=tuple(f"emnist-digits-{name}" for name in NAMES))
    with pytest.raises(DataError, match=r"several sets of digits \(\(no prefix\), emnist-digits\)"):
        load_directory(tmp_path / "b")


def test_a_web_page_instead_of_digits_is_refused(tiny: DigitSource, tmp_path: Path) -> None:
    write_folder(tmp_path, tiny, ".gz")
    page = tmp_path / "train-images-idx3-ubyte.gz"
    page.write_bytes(b"<!DOCTYPE html>\n<html><body>Not found</body></html>")
    with pytest.raises(DataError) as caught:
        load_directory(tmp_path)
    assert str(caught.value).startswith(f"{page}: a web page, not an IDX file;")


def test_unsuitable_digits_are_refused(tiny: DigitSource, tmp_path: Path) -> None:
    images, labels = tiny.test.images, tiny.test.labels
    cases: list[tuple[str, np.ndarray, str]] = [
        ("labels-idx1", labels[:-1], "59 labels, but .* has 60 images"),
        ("labels-idx1", np.where(labels == 3, 10, labels).astype(np.uint8), "labels from 0 to 10; only the ten"),
        ("labels-idx1", np.full_like(labels, 4), "every label is 4"),
        ("labels-idx1", labels[:0], "0 labels"),
        ("labels-idx1", labels.astype(np.float32), "holds float32 with 1 dimensions"),
        ("labels-idx1", (labels.astype(np.int32) - 1)[:, None], "labels from -1 to 8"),
        ("images-idx3", images[:, :, :-1], "images of 6x5 px"),
        ("images-idx3", images[:, :-1, :-1], "digits of 5 px, but .* has digits of 6 px"),
        ("images-idx3", images[:, 0], "holds uint8 with 2 dimensions"),
        ("images-idx3", images.astype(np.int16), "holds int16 with 3 dimensions"),
    ]
    for kind, values, reason in cases:
        write_folder(tmp_path, tiny)
        path = tmp_path / f"t10k-{kind}-ubyte"
        path.write_bytes(encode_idx(values))
        with pytest.raises(DataError, match=reason) as caught:
            load_directory(tmp_path)
        assert str(caught.value).startswith(str(path))


def test_no_digit_is_in_two_pools(mnist: DigitSource) -> None:
    pools = split_digits(mnist, 3)
    train, valid, test = (pools[split].source_row for split in ("train", "valid", "test"))
    assert (len(train), len(valid), len(test)) == (55_000, 5_000, 10_000)
    assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(60_000))
    assert np.array_equal(test, np.arange(10_000))
    for split, digit_set in (("train", mnist.train), ("valid", mnist.train), ("test", mnist.test)):
        pool = pools[split]
        assert np.array_equal(pool.images, digit_set.images[pool.source_row])
        assert np.array_equal(pool.labels, digit_set.labels[pool.source_row])
        assert np.all(np.diff(pool.source_row) > 0)


def test_the_digit_split_depends_on_the_seed_alone(tiny: DigitSource) -> None:
    rows = [split_digits(tiny, seed)["valid"].source_row.tolist() for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


def test_small_sources_give_two_classes_to_every_pool_or_are_refused() -> None:
    labels = np.array([0] * 23 + [1] * 23, np.uint8)
    images = np.ones((46, 2, 2), np.uint8)
    for seed in range(20):  # a twelfth is 3 digits: often all of one class
        pools = split_digits(DigitSource(DigitSet(images, labels), DigitSet(images, labels), "two", ""), seed)
        assert all(len(np.unique(pool.labels)) == 2 for pool in pools.values())
    few = DigitSet(images[:3], np.array([0, 0, 1], np.uint8))
    with pytest.raises(DataError, match="the digit source few has too few digits: its train split"):
        split_digits(DigitSource(few, few, "few", ""), 0)


def test_classes_are_found_in_the_sorted_pool() -> None:
    pool = split_digits(make_source(), 0)["train"]
    for label in range(10):
        rows = pool.class_order[pool.class_start[label] : pool.class_start[label + 1]]
        assert np.array_equal(rows, np.flatnonzero(pool.labels == label))
