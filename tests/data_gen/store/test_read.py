from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen.digits import DigitPool, DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.sharding import WHOLE, Shard
from data_gen.store.hdf5 import write_text
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import SampleBlock, synthesize
from tests.data_gen.sources import make_tiny_spec

SPEC = make_tiny_spec(num_train=400)


@pytest.fixture
def path(tiny: DigitSource, tmp_path: Path) -> Path:
    write_dataset(tmp_path / "d.h5", SPEC, tiny)
    return tmp_path / "d.h5"


def _change(path: Path, change: Callable[[Any], object]) -> None:
    with h5py.File(path, "r+") as file:
        change(file)


def _set_attribute(file: Any, name: str, value: object) -> None:
    if isinstance(value, str):
        write_text(file, name, value)
    else:
        file.attrs[name] = value


def _replace(name: str, **options: Any) -> Callable[[Any], object]:
    """A change that stores a dataset anew, with other options."""

    def change(file: Any) -> None:
        values = file[name][:]
        del file[name]
        file.create_dataset(name, **{"data": values, **options})

    return change


def _refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught, open_dataset(path) as file:
        for split in ("train", "valid", "test"):
            file.read_split(split)
            file.read_pool(split)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_what_was_written_is_read(tiny: DigitSource, path: Path) -> None:
    with open_dataset(path) as file:
        assert file.spec == SPEC
        assert file.digit_source_name == "tiny"
        assert file.digit_source_digest == tiny.digest
        file.verify_digest()
        for split, pool in split_digits(tiny, SPEC.seed).items():
            expected = synthesize(SPEC, pool, split, 0, SPEC.num_samples(split))
            found, found_pool = file.read_split(split), file.read_pool(split)
            assert file.num(split) == len(found) == SPEC.num_samples(split)
            for field in fields(SampleBlock):
                assert np.array_equal(getattr(found, field.name), getattr(expected, field.name))
                assert getattr(found, field.name).dtype == getattr(expected, field.name).dtype
            for field in fields(DigitPool):
                assert np.array_equal(getattr(found_pool, field.name), getattr(pool, field.name))
            fresh = synthesize(file.spec, found_pool, split, 5000, 5010)
            assert np.array_equal(fresh.images, synthesize(SPEC, pool, split, 5000, 5010).images)


def _hash_by_hand(path: Path) -> str:
    """The content digest as FORMAT.md words it."""
    with h5py.File(path) as file:
        lines = ["overlaycaps.overlay 2", file.attrs["spec"].decode(), file.attrs["digit_source_digest"].decode()]
        if file.attrs["shard"] != b"1/1":
            lines.append("shard " + file.attrs["shard"].decode())
        for split in ("train", "valid", "test"):
            blocks = []
            for start in range(0, len(file[split]["images"]), 1024):
                block = hashlib.sha256()
                for name in ("images", "labels", "digits", "source_index", "offset_px", "overlap"):
                    block.update(file[split][name][start : start + 1024].tobytes())
                blocks.append(block.digest())
            assert file[split]["block_digest"][:].tobytes() == b"".join(blocks)
            lines.append(f"{split} {hashlib.sha256(b''.join(blocks)).hexdigest()}")
        for group in ("digits/train", "digits/valid", "digits/test"):
            pool = b"".join(file[group][name][:].tobytes() for name in ("images", "labels", "source_row"))
            lines.append(f"{group} {hashlib.sha256(pool).hexdigest()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_the_content_digest_is_the_documented_one(tiny: DigitSource, tmp_path: Path) -> None:
    spec = make_tiny_spec(num_train=2100)
    for number, shard in enumerate((WHOLE, Shard(1, 2), Shard(2, 2), Shard(1, 3))):
        info = write_dataset(tmp_path / f"{number}.h5", spec, tiny, shard=shard)
        assert _hash_by_hand(info.path) == info.content_digest


def test_a_changed_pixel_is_found_on_reading(path: Path) -> None:
    def change(file: Any) -> None:
        file["train/images"][399, 3, 3] ^= 1

    _change(path, change)
    assert _refusal(path) == (
        "train samples 0 to 399 do not match their stored digest: damaged or changed; generate the file again"
    )


def test_a_changed_digest_or_digit_is_found_by_the_digest_of_the_whole(path: Path) -> None:
    for name, where in (("digits/valid/images", (0, 2, 2)), ("test/block_digest", (0, 5))):
        whole = path.read_bytes()
        with h5py.File(path, "r+") as file:
            file[name][where] ^= 1
        with open_dataset(path) as file, pytest.raises(DataError, match="contents do not match the stored digest"):
            file.verify_digest()
        path.write_bytes(whole)


def test_rows_are_read_in_the_order_asked_for(path: Path) -> None:
    with open_dataset(path) as file:
        samples = file.read_split("train")
        rows = [399, 0, 17, 17, 250]
        values = file.read_rows("train", rows)
        for field in fields(SampleBlock):
            assert np.array_equal(values[field.name], getattr(samples, field.name)[rows]), field.name
        assert list(file.read_rows("valid", [3], ("labels",))) == ["labels"]
        assert file.read_rows("valid", [])["images"].shape == (0, 12, 12)
        for row in (-1, 400):
            with pytest.raises(IndexError, match=f"train has samples 0 to 399, and no {row}"):
                file.read_rows("train", [0, row])


def test_a_missing_file_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    assert _refusal(path) == f"no such file; make it with `overlaycaps generate --out {path}`"
    assert _refusal(tmp_path).startswith("not a file;")
    os.mkfifo(path)
    assert _refusal(path).startswith("not a file;")


@pytest.mark.parametrize("content", [b"", b"not HDF5", b"<html></html>", b"\x89HDF\r\n\x1a"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    path.write_bytes(content)
    assert _refusal(path).startswith("not an HDF5 file;")


@pytest.mark.parametrize("share", [0.3, 0.99])
def test_a_truncated_file_is_refused(share: float, path: Path) -> None:
    os.truncate(path, int(path.stat().st_size * share))
    assert _refusal(path).startswith("cut off,")


def test_a_foreign_hdf5_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2]
    assert _refusal(path).startswith("an HDF5 file, but not one that `overlaycaps generate` wrote")
    for value in ("someone.else", 3, np.array([1, 2])):
        _change(path, partial(_set_attribute, name="format", value=value))
        assert _refusal(path).startswith("an HDF5 file, but not one that `overlaycaps generate` wrote")


@pytest.mark.parametrize(
    "name", ["format_version", "spec", "digit_source", "digit_source_digest", "shard", "content_digest"]
)
def test_a_missing_or_mistyped_attribute_is_named(name: str, path: Path) -> None:
    _change(path, lambda file: file.attrs.__setitem__(name, 1.5))
    kind = "an integer of 64 bits, little-endian" if name == "format_version" else "a text of fixed length in UTF-8"
    assert _refusal(path).startswith(f"the attribute {name} is not {kind}")
    _change(path, lambda file: file.attrs.__delitem__(name))
    assert _refusal(path).startswith(f"the attribute {name} is missing")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "the spec is not valid JSON"),
        (json.dumps({**SPEC.to_dict(), "count_weights": [0.5, float("nan")]}), "--count-weights nan"),
        (json.dumps({**SPEC.to_dict(), "count_weights": [0.5, 0.4]}), "--count-weights [0.5, 0.4] add up to 0.9"),
        (json.dumps({**SPEC.to_dict(), "num_train": 10**30}), "--train"),
    ],
)
def test_an_invalid_spec_is_refused(text: str, reason: str, path: Path) -> None:
    _change(path, partial(_set_attribute, name="spec", value=text))
    assert _refusal(path).startswith(f"its spec is refused: {reason}")


def test_a_missing_group_is_named(path: Path) -> None:
    _change(path, lambda file: file.__delitem__("digits/valid"))
    assert _refusal(path) == "group digits/valid is missing; generate the file again"


def _swap_for_group(file: Any) -> None:
    del file["train/labels"]
    file.create_group("train/labels")


def _swap_for_empty(file: Any) -> None:
    del file["train/labels"]
    file["train/labels"] = h5py.Empty("u1")


def _leave_unwritten(file: Any) -> None:
    del file["train/images"]
    file.create_dataset("train/images", shape=(400, 12, 12), dtype="u1", chunks=(100, 12, 12))


def _claim_terabytes(file: Any) -> None:
    spec = make_tiny_spec(num_train=100_000_000)
    write_text(file, "spec", spec.to_json())
    del file["train/images"]
    file.create_dataset("train/images", shape=(100_000_000, 12, 12), dtype="u1", chunks=(100, 12, 12))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_swap_for_group, "train/labels is not a dataset"),
        (_swap_for_empty, "dataset train/labels has shape None, not (400, 10)"),
        (_replace("train/labels", dtype="i2"), "dataset train/labels has type int16, not u1"),
        (_replace("valid/overlap", dtype=">f4"), "dataset valid/overlap has type >f4, not f4"),
        (_replace("test/digits", data=np.zeros((20, 3), "i1")), "dataset test/digits has shape (20, 3), not (20, 2)"),
        (_replace("digits/train/labels", data=np.zeros(3, "u1")), "dataset digits/train/labels has shape (3,)"),
        (_replace("train/images", compression="gzip"), "dataset train/images is compressed or filtered"),
        (_leave_unwritten, "dataset train/images holds 0 of 57,600 bytes"),
        (_claim_terabytes, "dataset train/images holds 0 of 14,400,000,000 bytes"),
    ],
)
def test_a_dataset_of_another_kind_is_refused(change: Callable[[Any], object], reason: str, path: Path) -> None:
    _change(path, change)
    assert _refusal(path).startswith(reason)


@pytest.mark.parametrize("kind", ["external", "soft"])
@pytest.mark.parametrize("name", ["train/images", "train", "digits/test/labels", "digits"])
def test_links_are_not_followed(kind: str, name: str, path: Path, tmp_path: Path) -> None:
    (tmp_path / "other.h5").write_bytes(path.read_bytes())

    def change(file: Any) -> None:
        file.move(name, "moved")
        file[name] = h5py.SoftLink("/moved") if kind == "soft" else h5py.ExternalLink("other.h5", f"/{name}")

    _change(path, change)
    assert f" {name} is a link to elsewhere, which is not followed" in _refusal(path)


def test_values_in_other_files_are_not_read(path: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.bin"
    values.write_bytes(bytes(4000))

    def store_outside(file: Any) -> None:
        del file["train/labels"]
        file.create_dataset("train/labels", shape=(400, 10), dtype="u1", external=[(str(values), 0, 4000)])

    def store_virtually(file: Any) -> None:
        layout = h5py.VirtualLayout((400, 10), "u1")
        layout[:] = h5py.VirtualSource("other.h5", "x", (400, 10))
        del file["train/labels"]
        file.create_virtual_dataset("train/labels", layout)

    for change in (store_outside, store_virtually):
        _change(path, change)
        assert _refusal(path).startswith("the values of dataset train/labels are in another file")


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("train/labels", (0, slice(None)), 1),
        ("train/labels", (5, slice(None)), 0),
        ("train/digits", (0, 0), 10),
        ("train/digits", (0, 0), -1),
        ("train/digits", (0, 0), -2),
        ("valid/source_index", (0, 0), 20),
        ("valid/source_index", (0, 0), -1),
        ("valid/source_index", (0, 0), -2),
        ("test/offset_px", (0, 0, 0), 4),
        ("test/offset_px", (0, 0, 0), -128),
        ("test/overlap", 0, np.nan),
        ("test/overlap", 0, 1.5),
        ("digits/train/labels", 7, 10),
        ("digits/test/labels", slice(None), 3),
        ("digits/test/source_row", 0, -1),
    ],
)
def test_impossible_values_are_refused(name: str, where: Any, value: float, path: Path) -> None:
    _change(path, lambda file: file[name].__setitem__(where, value))
    assert _refusal(path).startswith(f"dataset {name} holds impossible values: ")


def test_an_unknown_split_is_refused(path: Path) -> None:
    with open_dataset(path) as file:
        for read in (file.read_split, file.read_pool, file.num):
            with pytest.raises(DataError, match="no split 'dev'"):
                read("dev")


def test_further_contents_are_ignored(path: Path) -> None:
    def change(file: Any) -> None:
        file["train/notes"] = [1, 2, 3]
        file["more"] = h5py.ExternalLink("absent.h5", "/")
        file.attrs["author"] = "me"

    _change(path, change)
    with open_dataset(path) as file:
        file.verify_digest()
        assert "notes" not in vars(file.read_split("train"))


def test_a_file_held_by_a_writer_gives_a_clear_message(path: Path) -> None:
    script = f"import h5py; file = h5py.File({str(path)!r}, 'r+'); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        message = _refusal(path)
        writer.communicate("\n")
    assert message == "in use by a program that is writing to it; wait until that has finished"


def test_two_readers_work_together(path: Path) -> None:
    script = (
        f"from data_gen.store.read import open_dataset; print(len(open_dataset({str(path)!r}).read_split('train')))"
    )
    with open_dataset(path) as file:
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[3], check=True
        )
        assert done.stdout == "400\n"
        assert len(file.read_split("train")) == 400


def test_damage_in_the_structure_gives_one_line(path: Path) -> None:
    whole = path.read_bytes()
    assert b"GCOL" not in whole, "a heap without checksums"
    positions = [match.start() for match in re.finditer(b"OHDR", whole)]
    assert positions
    for position in positions[:20]:
        path.write_bytes(whole[:position] + b"DEAD" + whole[position + 4 :])
        assert "generate" in _refusal(path)
