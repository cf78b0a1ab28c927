"""Inspection finds every fault that there is, names it, and counts what there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen.digits import DigitSource
from data_gen.sharding import Shard
from data_gen.spec import OverlaySpec
from data_gen.store.hdf5 import write_text
from data_gen.store.inspect import inspect_dataset
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from tests.data_gen.sources import make_source, make_tiny_spec

SPEC = make_tiny_spec(num_train=2500, num_valid=40, count_weights={1: 1, 2: 2, 4: 1}, max_digits=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "d.h5", SPEC, make_source()).path


def change(path: Path, alter: Callable[[Any], object]) -> list[str]:
    with h5py.File(path, "r+") as file:
        alter(file)
    return inspect_dataset(path).faults


def test_a_file_without_fault_is_counted_rightly(path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    inspection = inspect_dataset(path, lambda *call: seen.append(call))
    assert inspection.faults == []
    assert inspection.spec == SPEC
    assert seen == [
        ("train", 1024, 2500),
        ("train", 2048, 2500),
        ("train", 2500, 2500),
        ("valid", 40, 40),
        ("test", 20, 20),
    ]
    with open_dataset(path) as file:
        for split in ("train", "valid", "test"):
            samples, summary = file.read_split(split), inspection.splits[split]
            num_digits = (samples.digits >= 0).sum(axis=1)
            assert summary.num_samples == len(samples)
            assert summary.by_count == [int((num_digits == count).sum()) for count in (1, 2, 3, 4)]
            assert summary.by_class == [int((samples.digits == label).any(axis=1).sum()) for label in range(10)]
            overlaps = [float(value) for value, count in zip(samples.overlap, num_digits, strict=True) if count > 1]
            assert summary.by_overlap == [sum(min(int(v * 10), 9) == b for v in overlaps) for b in range(10)]
            assert summary.mean_overlap == pytest.approx(sum(overlaps) / len(overlaps))
            assert summary.num_digits == len(file.read_pool(split).labels)
    assert json.loads(json.dumps(inspection.to_dict()))["content_digest"] == inspection.content_digest


def test_a_split_of_single_digits_has_no_overlap(tmp_path: Path, tiny: DigitSource) -> None:
    write_dataset(tmp_path / "d.h5", make_tiny_spec(max_digits=1), tiny)
    inspection = inspect_dataset(tmp_path / "d.h5")
    assert inspection.faults == []
    assert inspection.to_dict()["splits"]["train"]["mean_overlap"] is None
    assert sum(inspection.splits["train"].by_overlap) == 0


def test_a_part_is_looked_at_by_its_own_place(tmp_path: Path, tiny: DigitSource) -> None:
    write_dataset(tmp_path / "p.h5", SPEC, tiny, shard=Shard(2, 2))
    inspection = inspect_dataset(tmp_path / "p.h5")
    assert inspection.faults == []
    assert inspection.splits["train"].num_samples == 2500 - 1024


def check_each_is_told_once(faults: list[str], *beginnings: str) -> None:
    for beginning in beginnings:
        assert sum(fault.startswith(beginning) for fault in faults) == 1, (beginning, faults)


def set_value(name: str, where: Any, value: Any) -> Callable[[Any], object]:
    def alter(file: Any) -> None:
        file[name][where] = value

    return alter


DAMAGE = {
    "pixel": (
        set_value("train/images", (7, 3, 3), 77),
        "dataset train/images is not what the digits make: 1 of 2,500 samples, the first is 7",
    ),
    "label": (
        set_value("train/labels", (2000, slice(0, 10)), 1),
        "dataset train/labels holds impossible values: other than the digits say",
    ),
    "class": (
        set_value("valid/digits", (3, 0), 10),
        "dataset valid/digits holds impossible values: a class outside -1 to 9",
    ),
    "no first digit": (
        set_value("valid/digits", (3, 0), -1),
        "dataset valid/digits holds impossible values: a sample without a digit in its first place",
    ),
    "row": (
        set_value("test/source_index", (0, 0), 60),
        "dataset test/source_index holds impossible values: a row outside -1 to 59",
    ),
    "presence": (
        set_value("test/source_index", (0, 0), -1),
        "dataset test/source_index holds impossible values: not absent where",
    ),
    "shift": (
        set_value("train/offset_px", (0, 0, 0), 4),
        "dataset train/offset_px holds impossible values: a shift of more than 3",
    ),
    "overlap": (
        set_value("train/overlap", 0, float("nan")),
        "dataset train/overlap holds impossible values: not within 0 to 1",
    ),
    "pool class": (
        set_value("digits/train/labels", 0, 10),
        "dataset digits/train/labels holds impossible values: a class too high",
    ),
    "pool row": (
        set_value("digits/test/source_row", 0, -1),
        "dataset digits/test/source_row holds impossible values: negative ones",
    ),
    "block digest": (
        set_value("test/block_digest", (0, 0), 0),
        "test samples 0 to 19 do not match their stored digest",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_is_named(name: str, path: Path) -> None:
    alter, expected = DAMAGE[name]
    faults = change(path, alter)
    assert any(fault.startswith(expected) for fault in faults), faults
    assert any("digest" in fault for fault in faults), faults
    assert all("\n" not in fault and "; " in fault for fault in faults)


def test_all_faults_are_listed_and_not_only_the_first(path: Path) -> None:
    def alter(file: Any) -> None:
        del file["valid/labels"]
        file["train/images"][5, 0, 0] ^= 1
        file["train/images"][2400, 0, 0] ^= 1
        file["test/overlap"][1] = 3
        file["digits/valid/source_row"][0] = file["digits/train/source_row"][0]

    faults = change(path, alter)
    check_each_is_told_once(
        faults,
        "dataset valid/labels is missing; generate the file again",
        "dataset train/images is not what the digits make: 2 of 2,500 samples, the first is 5; ",
        "train samples 0 to 1,023 do not match their stored digest",
        "train samples 2,048 to 2,499 do not match their stored digest",
        "dataset test/overlap holds impossible values",
        "digits/train and digits/valid share 1 digits",
    )


def test_an_overlay_that_the_spec_does_not_draw_is_told(path: Path, tmp_path: Path) -> None:
    # Another seed's samples are as good as any, but they are not what this spec stands for.
    other = OverlaySpec.from_dict({**SPEC.to_dict(), "seed": 1})

    def alter(file: Any) -> None:
        write_text(file, "spec", other.to_json())

    faults = change(path, alter)
    assert any(
        fault.startswith("train has overlays that the spec does not draw: 2,500 of 2,500 samples") for fault in faults
    )
    assert any("the contents do not match the stored digest" in fault for fault in faults)


def test_the_digits_of_a_sample_must_be_of_its_classes(path: Path) -> None:
    with open_dataset(path) as file:
        pool, samples = file.read_pool("train"), file.read_split("train")
    other = int(np.flatnonzero(pool.labels != samples.digits[9, 0])[0])
    faults = change(path, set_value("train/source_index", (9, 0), other))
    assert any(
        fault.startswith("dataset train/digits has not the classes of the source digits: 1 of 2,500")
        for fault in faults
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "not an HDF5 file"), (b"\x89HDF\r\n\x1a\n" + bytes(200), "a damaged HDF5 file")],
)
def test_other_files_are_one_fault(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(content)
    inspection = inspect_dataset(tmp_path / "x.h5")
    assert len(inspection.faults) == 1
    assert inspection.faults[0].startswith(expected)
    assert inspection.spec is None


def test_a_fault_hides_no_other(path: Path) -> None:
    def alter(file: Any) -> None:
        del file.attrs["content_digest"]  # of the header, of the structure, of the digits and of the samples
        del file["valid/labels"]
        file["digits/test/labels"][0] = 10
        file["digits/test/source_row"][0] = -1
        file["test/overlap"][1] = 3
        file["train/offset_px"][5] = 4
        file["train/images"][6, 0, 0] ^= 1

    faults = change(path, alter)
    check_each_is_told_once(
        faults,
        "the attribute content_digest is missing",
        "dataset valid/labels is missing",
        "dataset digits/test/labels holds impossible values",
        "dataset digits/test/source_row holds impossible values",
        "dataset test/overlap holds impossible values: not within 0 to 1: 1 of 20 samples, the first is 1; ",
        "dataset train/offset_px holds impossible values: a shift of more than 3: 1 of 2,500 samples, the first is 5; ",
        "dataset train/images is not what the digits make: 1 of 2,500 samples, the first is 6; ",
    )


def test_every_part_is_looked_at_whatever_is_wrong_with_others(tmp_path: Path) -> None:
    parts = [write_dataset(tmp_path / f"{n}%b.h5", SPEC, make_source(), shard=Shard(n, 3)).path for n in (1, 2, 3)]
    whole = merge_parts(parts, tmp_path / "whole.h5").path
    intact = inspect_dataset(whole)
    assert intact.faults == []
    assert intact.splits["train"].num_samples == sum(intact.splits["train"].by_count) == 2500
    with h5py.File(parts[0], "r+") as file:
        del file["train/labels"], file["valid/labels"]
        file["digits/valid/images"][0, 0, 0] ^= 1
    with h5py.File(parts[1], "r+") as file:
        file["train/images"][3, 0, 0] ^= 1
    parts[2].unlink()
    faults = inspect_dataset(whole).faults
    check_each_is_told_once(
        faults,
        "its part 1%b.h5: dataset train/labels is missing; ",
        "its part 1%b.h5: dataset valid/labels is missing; ",
        "its part 1%b.h5: digits/valid differs from that of the whole; ",
        "its part 2%b.h5: dataset train/images is not what the digits make: 1 of 1,024 samples, the first is 3; ",
        "its part 2%b.h5: train samples 0 to 1,023 do not match their stored digest",
        "its part 3%b.h5 is missing; ",
    )


def test_a_spec_that_nothing_can_be_drawn_for_takes_no_long_search(path: Path) -> None:
    impossible = json.dumps({**SPEC.to_dict(), "min_overlap": 0.99999, "max_overlap": 1.0})
    faults = change(path, lambda file: write_text(file, "spec", impossible))
    assert sum(fault.startswith("--overlap 0.99999:1: none of 2,048 samples") for fault in faults) == 3, faults
    assert any(fault.startswith("dataset train/overlap holds impossible values: outside 0.99999") for fault in faults)


def test_a_negative_zero_is_not_zero(path: Path) -> None:
    with h5py.File(path) as file:
        row = int(np.flatnonzero(file["train/overlap"][:] == 0)[0])
    faults = change(path, set_value("train/overlap", row, np.float32(-0.0)))
    assert any(fault.startswith("dataset train/overlap is not that of the digits: 1 of 2,500") for fault in faults)


def test_digits_must_be_divided_as_the_seed_says(path: Path) -> None:
    def swap(file: Any) -> None:
        train, valid = file["digits/train/source_row"], file["digits/valid/source_row"]
        train[0], valid[0] = valid[0], train[0]

    expected = "digits/train and digits/valid are not divided as the seed divides all training digits; "
    assert any(fault.startswith(expected) for fault in change(path, swap))


def test_an_overlay_of_hdf5_types_that_look_alike_is_refused(path: Path) -> None:
    def alter(file: Any) -> None:
        values = file["valid/labels"][:]
        del file["valid/labels"]
        space = h5py.h5s.create_simple(values.shape)
        h5py.h5d.create(file["valid"].id, b"labels", h5py.h5t.STD_B8LE, space)
        del file["digits/test/images"]
        file["digits/test/images"] = np.uint8(0)
        del file["test/overlap"]
        file.create_dataset("test/overlap", data=np.zeros(20, "<f4"), chunks=(20,))

    faults = change(path, alter)
    check_each_is_told_once(
        faults,
        "dataset valid/labels has type of another class, not u1; ",
        "dataset digits/test/images has shape (), not (any, 6, 6); ",
        "dataset test/overlap is smaller than 10,240 bytes and not contiguous; ",
    )
