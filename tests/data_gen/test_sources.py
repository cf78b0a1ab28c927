from __future__ import annotations

import hashlib
import lzma
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import data_gen.pack
from data_gen import sources
from data_gen.digits import DigitSet, DigitSource
from data_gen.errors import DataError
from data_gen.sources import load_bundled, load_directory
from data_gen.spec import DIGIT_NAMES
from tests.data_gen.sources import NAMES, PACKERS, encode_idx, list_parts, make_source, write_folder

PACK = Path(data_gen.pack.__path__[0])


def _same(first: DigitSource, second: DigitSource) -> bool:
    pairs = zip(list_parts(first.train, first.test), list_parts(second.train, second.test), strict=True)
    same = (first.digest, first.class_names) == (second.digest, second.class_names)
    return same and all(np.array_equal(a, b) for a, b in pairs)


def test_the_bundled_digits_are_mnist(mnist: DigitSource) -> None:
    assert mnist.train.images.shape == (60_000, 28, 28)
    assert mnist.test.images.shape == (10_000, 28, 28)
    assert mnist.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(mnist.test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist.digit_px == 28
    assert mnist.name == "mnist"
    assert mnist.class_names == tuple("0123456789")


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
    monkeypatch.setattr(sources, "_pack_folder", lambda: folder)
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
    monkeypatch.setattr(sources, "_pack_folder", lambda: folder)
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
    assert loaded.name == "idx"


@pytest.mark.parametrize(
    ("names", "source_name"),
    [
        (tuple(name.replace("-idx", ".idx") for name in NAMES), "idx"),
        (tuple(f"emnist-digits-{name.replace('t10k', 'test')}" for name in NAMES), "emnist-digits"),
    ],
)
def test_the_usual_names_are_found(names: tuple[str, ...], source_name: str, tiny: DigitSource, tmp_path: Path) -> None:
    loaded = load_directory(write_folder(tmp_path / "folder", tiny, ".gz", names))
    assert _same(loaded, tiny)
    assert loaded.name == source_name


def test_the_folder_is_not_in_the_name_and_a_name_is_text(tiny: DigitSource, tmp_path: Path) -> None:
    assert load_directory(write_folder(tmp_path / os.fsdecode(b"em\xf4"), tiny)).name == "idx"
    names = tuple(f"{os.fsdecode(b'em' + bytes([0xF4]))}-{name}" for name in NAMES)
    assert load_directory(write_folder(tmp_path / "other", tiny, names=names)).name == "em?"
    names = tuple(f"em\x1b[2J-{name}" for name in NAMES)
    assert load_directory(write_folder(tmp_path / "unprintable", tiny, names=names)).name == "em?[2J"


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
        (
            "labels-idx1",
            np.where(labels == 3, 10, labels).astype(np.uint8),
            "label 10 is not among those of .*train-labels",
        ),
        ("labels-idx1", np.full_like(labels, 4), "every label is 4"),
        ("labels-idx1", labels[:0], "0 labels"),
        ("labels-idx1", labels.astype(np.float32), "holds float32 with 1 dimensions"),
        ("labels-idx1", (labels.astype(np.int32) - 1)[:, None], "labels from -1 to 8; labels are 0 or more"),
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


LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
MAPPING = "".join(f"{label} {64 + label} {96 + label}\n" for label in range(1, 27))  # `1 65 97`: A and a


def _shift_labels(source: DigitSource, labels: list[int]) -> DigitSource:
    """The same images, with class c labelled `labels[c]` in the files, as EMNIST labels its letters from 1."""
    table = np.array(labels, np.uint8)
    train, test = (DigitSet(digits.images, table[digits.labels]) for digits in (source.train, source.test))
    return DigitSource(train, test, source.name, source.digest, source.class_names)


def _write_letters(folder: Path, mapping: str | bytes | None = MAPPING, prefix: str = "emnist-letters-") -> DigitSource:
    """Write a folder as EMNIST's letters have it, and return what it holds, with classes numbered from 0."""
    letters = make_source(260, 78, class_names=LETTERS)
    names = tuple(prefix + name.replace("t10k", "test") for name in NAMES)
    write_folder(folder, _shift_labels(letters, list(range(1, 27))), ".gz", names)
    if mapping is not None:
        content = mapping.encode() if isinstance(mapping, str) else mapping
        (folder / f"{prefix}mapping.txt").write_bytes(content)
    return letters


@pytest.mark.parametrize(
    ("mapping", "names"),
    [
        (MAPPING, LETTERS),
        ("\r\n".join(reversed(MAPPING.splitlines())) + "\r\n\r\n", LETTERS),  # order and line ends do not matter
        (None, tuple(str(label) for label in range(1, 27))),
        ("5 69 101\n", tuple("E" if label == 5 else str(label) for label in range(1, 27))),
    ],
)
def test_a_set_of_letters_gives_classes_named_by_its_mapping(
    mapping: str | None, names: tuple[str, ...], tmp_path: Path
) -> None:
    letters = _write_letters(tmp_path, mapping)
    loaded = load_directory(tmp_path)
    assert loaded.name == "emnist-letters"
    assert loaded.class_names == names
    assert np.array_equal(loaded.train.labels, letters.train.labels)  # 0 to 25, though the files say 1 to 26
    assert np.array_equal(loaded.test.labels, letters.test.labels)
    assert loaded.train.labels.dtype == np.uint8


def test_a_mapping_without_prefix_belongs_to_files_without_prefix(tmp_path: Path) -> None:
    _write_letters(tmp_path, prefix="")
    (tmp_path / "emnist-letters-mapping.txt").write_text("1 33\n")
    assert load_directory(tmp_path).class_names == LETTERS


def test_labels_of_0_to_9_are_ten_classes_even_where_some_are_absent(tmp_path: Path) -> None:
    sevens = _shift_labels(make_source(class_names=("x", "y", "z")), [2, 5, 7])
    loaded = load_directory(write_folder(tmp_path, sevens))
    assert loaded.class_names == DIGIT_NAMES
    assert np.array_equal(loaded.train.labels, sevens.train.labels)  # 7 stays 7
    assert np.array_equal(loaded.test.labels, sevens.test.labels)


def test_one_label_beyond_9_makes_a_class_of_each_distinct_label(tmp_path: Path) -> None:
    odd = _shift_labels(make_source(class_names=("x", "y", "z")), [2, 5, 10])
    loaded = load_directory(write_folder(tmp_path, odd))
    assert loaded.class_names == ("2", "5", "10")
    assert np.array_equal(loaded.train.labels, np.searchsorted([2, 5, 10], odd.train.labels))


def test_a_mapping_makes_a_class_of_each_distinct_label_of_the_training_file(tmp_path: Path) -> None:
    write_folder(tmp_path, _shift_labels(make_source(class_names=("x", "y", "z")), [2, 5, 7]))
    (tmp_path / "mapping.txt").write_text("2 65\n5 66\n7 67\n9 68\n")
    assert load_directory(tmp_path).class_names == ("A", "B", "C")


def test_a_test_label_that_training_lacks_is_refused(tmp_path: Path) -> None:
    _write_letters(tmp_path)
    path = tmp_path / "emnist-letters-test-labels-idx1-ubyte.gz"
    path.write_bytes(PACKERS[".gz"](encode_idx((np.arange(78) % 27).astype(np.uint8))))
    with pytest.raises(DataError) as caught:
        load_directory(tmp_path)
    train = tmp_path / "emnist-letters-train-labels-idx1-ubyte.gz"
    assert str(caught.value) == f"{path}: label 0 is not among those of {train}; use files of one data set"


def test_too_many_classes_are_refused(tmp_path: Path) -> None:
    for num, is_fine in ((128, True), (129, False)):
        write_folder(tmp_path, make_source(260, 260, 2, tuple(str(label) for label in range(num))))
        if is_fine:
            assert len(load_directory(tmp_path).class_names) == num
        else:
            with pytest.raises(DataError, match=r"train-labels-idx1-ubyte: labels of 129 classes; at most 128 are"):
                load_directory(tmp_path)


@pytest.mark.parametrize(
    "mapping",
    [
        "1 A\n",
        "1\n",
        "1 65 97\n1 66\n",
        "1 65\n2 65\n",
        "1 10\n",
        "1 27\n",
        "1 -5\n",
        f"1 {2**40}\n",
        f"1 {10**30}\n",
        "1 55296\n",
        "1 65 " + "9" * 5000,
        MAPPING * 100,
        b"1 \xff65\n",
        "<html>\n",
    ],
)
def test_a_bad_mapping_is_refused_in_one_line(mapping: str | bytes, tmp_path: Path) -> None:
    _write_letters(tmp_path, mapping)
    path = tmp_path / "emnist-letters-mapping.txt"
    with pytest.raises(DataError) as caught:
        load_directory(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}: not a mapping from labels to characters (")
    assert message.endswith("mend it, or move it away: classes are then named by their labels")
    assert "\n" not in message
    assert len(message) < 400 + len(str(path))


def test_a_mapping_that_repeats_the_name_of_an_unmapped_label_is_refused(tmp_path: Path) -> None:
    _write_letters(tmp_path, f"2 {ord('1')}\n")  # label 2 would be called 1, and so would label 1
    with pytest.raises(DataError, match="mapping"):
        load_directory(tmp_path)
