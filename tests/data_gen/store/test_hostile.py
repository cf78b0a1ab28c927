"""Files that someone made to do harm: nothing outside is opened, nothing large is allocated, no rule is bent."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen.errors import DataError
from data_gen.sharding import Shard
from data_gen.store.hdf5 import write_text
from data_gen.store.inspect import inspect_dataset
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from tests.data_gen.sources import make_source, make_tiny_spec

SPEC = make_tiny_spec(num_train=3000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    return write_dataset(folder / "d.h5", SPEC, make_source()).path


@pytest.fixture
def referring(tmp_path: Path) -> Path:
    """A file that refers to two parts beside it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    parts = [write_dataset(folder / f"{n}.h5", SPEC, make_source(), shard=Shard(n, 2)).path for n in (1, 2)]
    return merge_parts(parts, folder / "whole.h5").path


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the reader's that no other file may make the program read."""
    path = tmp_path / "secret.h5"
    with h5py.File(path, "w") as file:
        file["labels"] = np.ones((3000, 10), np.uint8)
    return path


def refuse(path: Path) -> str:
    """Return why a file is refused; the inspection must say the same."""
    with pytest.raises(DataError) as caught:
        open_dataset(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    reason = message.removeprefix(f"{path}: ")
    assert inspect_dataset(path).faults[0] == reason
    return reason


def replace(path: Path, name: str, make: Callable[[Any], object]) -> None:
    with h5py.File(path, "r+") as file:
        del file[name]
        make(file)


def test_links_out_of_the_file_are_not_followed(path: Path, secret: Path) -> None:
    for link in (
        h5py.ExternalLink(str(secret), "/labels"),
        h5py.ExternalLink("../secret.h5", "/labels"),
        h5py.SoftLink("/valid/labels"),
        h5py.SoftLink("/nowhere"),
    ):
        with h5py.File(path, "r+") as file:
            del file["train/labels"]
            file["train/labels"] = link
        assert refuse(path) == (
            "dataset train/labels is a link to elsewhere, which is not followed; generate the file again"
        )


def test_a_group_that_is_a_link_is_not_followed(path: Path, secret: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["digits"]
        file["digits"] = h5py.ExternalLink(str(secret), "/")
    assert refuse(path).startswith("group digits is a link to elsewhere, which is not followed")


def test_values_in_another_file_are_not_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(bytes(30_000))
    external = [(str(tmp_path / "raw"), 0, 30_000)]
    replace(path, "train/labels", lambda file: file.create_dataset("train/labels", (3000, 10), "u1", external=external))
    assert refuse(path).startswith("the values of dataset train/labels are in another file, not read from")


@pytest.mark.parametrize("rows", [3000, h5py.h5s.UNLIMITED])
@pytest.mark.parametrize("target", ["{folder}/secret.h5", "../secret.h5", "linked/secret.h5", "."])
def test_virtual_datasets_of_other_files_are_not_read(
    target: str, rows: int, path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path.parent / "linked").symlink_to(secret.parent)
    monkeypatch.chdir(secret.parent)

    def make(file: Any) -> None:
        limited = rows == 3000
        source = h5py.VirtualSource(target.format(folder=secret.parent), "labels", (3000, 10), "u1", (None, 10))
        layout = h5py.VirtualLayout((3000, 10), "u1", (3000 if limited else None, 10))
        layout[:rows, :] = source[:rows, :]
        file.create_virtual_dataset("train/labels", layout)

    replace(path, "train/labels", make)
    assert refuse(path).startswith("the values of dataset train/labels are in another file, not read from")


@pytest.mark.parametrize(
    "part", ["/etc/x.h5", "../1.h5", "a/../../1.h5", "C:\\x.h5", "a\\1.h5", "", ".", "a//1.h5", "a\nb", 3]
)
def test_parts_outside_the_folder_are_not_followed(part: object, referring: Path) -> None:
    with h5py.File(referring, "r+") as file:
        write_text(file, "parts", json.dumps([part, "2.h5"]))
    assert "is not in the file's own folder, and is not followed; merge the parts again" in refuse(referring)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 5000, json.dumps(["1.h5", "1.h5"]), json.dumps(["1.h5"] * 100_001)]
)
def test_lists_of_parts_that_are_none_are_refused(text: str, referring: Path) -> None:
    with h5py.File(referring, "r+") as file:
        write_text(file, "parts", text)
    assert refuse(referring).startswith("the attribute parts ")


def test_a_part_through_a_link_out_of_the_folder_is_not_followed(referring: Path, tmp_path: Path) -> None:
    (referring.parent / "1.h5").rename(tmp_path / "1.h5")
    (referring.parent / "1.h5").symlink_to(tmp_path / "1.h5")
    assert refuse(referring).startswith("its part 1.h5 is a link out of the file's folder, which is not followed")


def test_virtual_datasets_must_be_what_the_parts_say(referring: Path) -> None:
    def refer(*rows: tuple[slice, str, slice]) -> Callable[[Any], object]:
        def make(file: Any) -> None:
            layout = h5py.VirtualLayout((3000, 10), "u1")
            for mine, name, others in rows:
                layout[mine] = h5py.VirtualSource(name, "/train/labels", (others.stop, 10))[others]
            file.create_virtual_dataset("train/labels", layout)

        return make

    wrong = "dataset train/labels does not refer to the parts in their order, to all of each; merge the parts again"
    first, second = (slice(0, 1024), "1.h5", slice(0, 1024)), (slice(1024, 3000), "2.h5", slice(0, 1976))
    replace(referring, "train/labels", refer(first, second))
    assert inspect_dataset(referring).faults == []
    for rows in (
        [(slice(0, 1976), "2.h5", slice(0, 1976))],
        [first],
        [second, first],
        [first, (slice(1024, 3000, 25), "2.h5", slice(0, 80))],  # has the bounds of the part, and leaves out rows
        [first, (slice(1024, 3000), "2.h5", slice(1, 1977))],
        [first, (slice(1024, 3000), "../2.h5", slice(0, 1976))],
    ):
        replace(referring, "train/labels", refer(*rows))
        assert inspect_dataset(referring).faults == [wrong], rows
        # Only other programs look at it; this one reads the parts by itself.
        with open_dataset(referring) as file:
            assert file.num("train") == 3000
    replace(referring, "train/labels", lambda file: file.create_dataset("train/labels", (3000, 10), "u1"))
    assert inspect_dataset(referring).faults == [
        "dataset train/labels is not virtual, though the file refers to parts; merge the parts again"
    ]


def test_a_part_that_refers_to_parts_is_refused(referring: Path) -> None:
    part = referring.parent / "1.h5"
    part.write_bytes(referring.read_bytes())  # it refers to itself
    with pytest.raises(DataError, match=r"1\.h5: refers to parts, and is a part itself; merge the parts again"):
        open_dataset(referring)
    assert len(inspect_dataset(referring).faults) == 1


def test_sizes_are_not_believed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        spec = json.loads(file.attrs["spec"])
        write_text(file, "spec", json.dumps({**spec, "num_train": 50_000_000}))
    assert refuse(path).startswith("dataset train/images has shape (3000, 12, 12), not (50000000, 12, 12)")

    def claim(file: Any) -> None:
        for name, row in (("images", (12, 12)), ("labels", (10,)), ("digits", (2,)), ("offset_px", (2, 2))):
            del file["train"][name]
            file.create_dataset(
                f"train/{name}", (50_000_000, *row), "u1" if name in ("images", "labels") else "i1", chunks=(1024, *row)
            )

    with h5py.File(path, "r+") as file:
        claim(file)
    assert refuse(path).startswith("dataset train/images holds 0 of 7,200,000,000 bytes")


def test_many_names_for_the_same_values_are_refused(path: Path) -> None:
    # Hard links are allowed, so one dataset may stand for several; but not for more than the file has.
    def alias(file: Any) -> None:
        file["digits/test/images"] = file["digits/train/images"]
        del file["digits/test/labels"], file["digits/test/source_row"]
        file["digits/test/labels"] = file["digits/train/labels"]
        file["digits/test/source_row"] = file["digits/train/source_row"]

    replace(path, "digits/test/images", alias)
    with open_dataset(path) as file, pytest.raises(DataError, match="do not match the stored digest"):
        file.verify_digest()


@pytest.mark.parametrize(
    "options", [{"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}, {"scaleoffset": 0}]
)
def test_filters_are_refused(options: dict[str, Any], path: Path) -> None:
    def make(file: Any) -> None:
        file.create_dataset("train/images", data=np.zeros((3000, 12, 12), np.uint8), chunks=(256, 12, 12), **options)

    replace(path, "train/images", make)
    assert refuse(path).startswith("dataset train/images is compressed or filtered, not plain")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"chunks": (20, 12, 12)}, "has chunks of 2,880 bytes, not of 10,240 to 1,048,576"),
        ({"chunks": (2900, 12, 6)}, "has chunks that are not whole rows"),
        ({}, "has no chunks"),
        ({"dtype": "i1"}, "has type int8, not u1"),
        ({"dtype": ">u2"}, "has type >u2, not u1"),
        ({"data": np.zeros((3000, 144), np.uint8)}, "has shape (3000, 144), not (3000, 12, 12)"),
        ({"data": np.uint8(0)}, "has shape (), not (3000, 12, 12)"),
    ],
)
def test_other_layouts_are_refused(options: dict[str, Any], reason: str, path: Path) -> None:
    def make(file: Any) -> None:
        file.create_dataset("train/images", **{"data": np.zeros((3000, 12, 12), np.uint8), **options})

    replace(path, "train/images", make)
    assert refuse(path).startswith(f"dataset train/images {reason}")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("format", None, "an HDF5 file, but not one that `overlaycaps generate` wrote; give one it wrote"),
        (
            "format",
            "overlaycaps.other",
            "an HDF5 file, but not one that `overlaycaps generate` wrote; give one it wrote",
        ),
        (
            "format",
            np.bytes_(b"overlaycaps.overlay"),
            "an HDF5 file, but not one that `overlaycaps generate` wrote; give one it wrote",
        ),
        ("format_version", 3, "has format version 3, this program reads 2; upgrade overlaycaps"),
        ("format_version", 1, "has format version 1, which this program no longer reads; generate the file again"),
        ("format_version", 2.0, "the attribute format_version is not an integer of 64 bits, little-endian"),
        ("format_version", np.array(2, ">i8"), "the attribute format_version is not an integer of 64 bits, little-"),
        ("format_version", np.full(3, 2), "the attribute format_version is not a single value"),
        ("digit_source", "a\x1b[2J", "the attribute digit_source is 'a\\x1b[2J', not a name of 1 to 255 printable"),
        ("digit_source", np.bytes_(b"mnist"), "the attribute digit_source is not a text of fixed length in UTF-8"),
        ("shard", "00001/000001", "the attribute shard is '00001/000001' and not 1/1"),
        ("spec", None, "the attribute spec is missing; generate the file again"),
        ("spec", 7, "the attribute spec is not a text of fixed length in UTF-8"),
        ("spec", "{}", "its spec is refused: the spec lacks protocol, seed"),
        ("spec", h5py.Empty("S1"), "the attribute spec is"),
        ("digit_source_digest", "xyz", "the attribute digit_source_digest is no sha256 in hex"),
        ("content_digest", "A" * 64, "the attribute content_digest is no sha256 in hex"),
        ("content_digest", np.zeros(10**4, "S5"), "the attribute content_digest is not a single value"),
        ("shard", "5/4", "the attribute shard is '5/4', no part of a dataset"),
        ("shard", "1/2", "dataset train/images has shape (3000, 12, 12), not (1024, 12, 12)"),
    ],
)
def test_attributes_of_any_kind_are_refused_with_a_reason(name: str, value: Any, reason: str, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
        if isinstance(value, str):
            write_text(file, name, value)
        elif value is not None:
            file.attrs[name] = value
    assert refuse(path).startswith(reason)


def test_every_missing_dataset_is_named(path: Path) -> None:
    names: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
    assert len(names) == 30
    for name in names:
        copy = path.with_name("copy.h5")
        copy.write_bytes(path.read_bytes())
        with h5py.File(copy, "r+") as file:
            del file[name]
        assert refuse(copy) == f"dataset {name} is missing; generate the file again"


def test_a_dataset_may_not_be_a_group_nor_a_group_a_dataset(path: Path) -> None:
    replace(path, "valid/labels", lambda file: file.create_group("valid/labels"))
    assert refuse(path).startswith("valid/labels is not a dataset")
    replace(path, "valid", lambda file: file.create_dataset("valid", data=[1]))
    assert refuse(path).startswith("valid is not a group")


def test_what_else_is_in_a_file_is_ignored(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "mine"
        file["train/notes"] = [1, 2, 3]
        file["notes/elsewhere"] = h5py.ExternalLink("../secret.h5", "/labels")
    assert inspect_dataset(path).faults == []
