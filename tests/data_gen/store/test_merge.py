"""Shards become one dataset: by reference or by copy, the same as if it had been made at once."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen.digits import DigitSource
from data_gen.errors import DataError
from data_gen.sharding import Shard
from data_gen.store import read
from data_gen.store.inspect import inspect_dataset
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.structure import check_structure
from data_gen.store.write import write_dataset
from data_gen.synthesis import SampleBlock
from tests.data_gen.sources import make_source, make_tiny_spec

SPEC = make_tiny_spec(num_train=5000, num_valid=1500)


def write_parts(folder: Path, source: DigitSource, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    shards = [Shard(number, count) for number in range(1, count + 1)]
    return [write_dataset(folder / f"{s.number}.h5", SPEC, source, shard=s).path for s in shards]


@pytest.fixture(scope="module")
def source() -> DigitSource:
    return make_source()


@pytest.fixture(scope="module")
def whole(source: DigitSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("whole") / "d.h5", SPEC, source).path


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_a_copy_has_the_bytes_of_the_dataset_made_at_once(
    count: int, source: DigitSource, whole: Path, tmp_path: Path
) -> None:
    parts = write_parts(tmp_path / "parts", source, count)
    shuffled = [parts[number] for number in np.random.default_rng(count).permutation(count)]
    merge_parts(shuffled, tmp_path / "d.h5", copy=True)
    assert (tmp_path / "d.h5").read_bytes() == whole.read_bytes()


def test_a_file_that_refers_to_parts_reads_as_the_whole(source: DigitSource, whole: Path, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts", source, 4)
    info = merge_parts(parts[::-1], tmp_path / "d.h5")
    with open_dataset(info.path) as found, open_dataset(whole) as expected:
        assert found.content_digest == expected.content_digest == info.content_digest
        assert info.size_bytes == info.path.stat().st_size < whole.stat().st_size
        found.verify_digest()
        for split in ("train", "valid", "test"):
            ours, theirs = found.read_split(split), expected.read_split(split)
            for field in fields(SampleBlock):
                assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name))
        rows = [4999, 0, 1024, 1023, 1024]
        assert np.array_equal(found.read_rows("train", rows)["images"], expected.read_split("train").images[rows])
    # Any HDF5 program finds the samples too.
    with h5py.File(info.path) as file, h5py.File(whole) as plain:
        assert file["train/images"].is_virtual
        assert np.array_equal(file["train/images"][:], plain["train/images"][:])
        assert np.array_equal(file["test/overlap"][:], plain["test/overlap"][:])
    assert inspect_dataset(info.path).faults == []
    before = info.path.read_bytes()
    merge_parts(parts, info.path, force=True)
    assert info.path.read_bytes() == before


def test_the_whole_moves_together_with_its_parts(source: DigitSource, tmp_path: Path) -> None:
    write_parts(tmp_path / "a/parts", source, 2)
    merge_parts([tmp_path / "a/parts/1.h5", tmp_path / "a/parts/2.h5"], tmp_path / "a/d.h5")
    (tmp_path / "a").rename(tmp_path / "b")
    with open_dataset(tmp_path / "b/d.h5") as file:
        assert len(file.read_split("train")) == 5000


def test_shards_without_samples_are_merged_too(source: DigitSource, tmp_path: Path) -> None:
    spec = make_tiny_spec()
    shards = [Shard(number, 3) for number in (1, 2, 3)]
    parts = [write_dataset(tmp_path / f"{s.number}.h5", spec, source, shard=s).path for s in shards]
    at_once = write_dataset(tmp_path / "at-once.h5", spec, source)
    for copy in (False, True):
        info = merge_parts(parts, tmp_path / f"{copy}.h5", copy=copy)
        assert info.content_digest == at_once.content_digest
        assert inspect_dataset(info.path).faults == []


def test_more_parts_than_may_be_open_are_opened_again_but_not_looked_through_again(
    source: DigitSource, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = write_parts(tmp_path, source, 5)
    path = merge_parts(parts, tmp_path / "d.h5").path
    checked: list[str] = []

    def note(file: Any, path: Path, *rest: Any) -> None:
        checked.append(path.name)
        check_structure(file, path, *rest)

    monkeypatch.setattr(read, "check_structure", note)
    monkeypatch.setattr(read, "count_open_parts", lambda: 2)
    rows = np.random.default_rng(0).integers(0, 5000, 300).tolist()
    with open_dataset(whole) as file:
        expected = file.read_rows("train", rows)["images"]
    checked.clear()
    with open_dataset(path) as file:
        for first in range(0, 300, 60):
            found = file.read_rows("train", rows[first : first + 60])["images"]
            assert np.array_equal(found, expected[first : first + 60])
        assert sorted(checked) == ["1.h5", "2.h5", "3.h5", "4.h5", "5.h5", "d.h5"]
        # Another file in the place of a part is not taken for the one that was checked.
        shutil.copy(parts[0], parts[1])
        file.read_rows("train", [0, 3000, 4900])
        with pytest.raises(DataError, match=r"2\.h5 is not shard 2/5"):
            file.read_rows("train", [1024])
    checked.clear()
    with open_dataset(path, check_parts=False) as file:
        assert checked == ["d.h5"]
        file.read_rows("train", [0])
        assert checked == ["d.h5", "1.h5"]


def test_what_does_not_belong_together_is_refused(source: DigitSource, whole: Path, tmp_path: Path) -> None:
    one, two, three = write_parts(tmp_path, source, 3)
    other_spec = write_dataset(tmp_path / "seed.h5", make_tiny_spec(num_train=5000, seed=1), source, shard=Shard(3, 3))
    other_job = write_dataset(tmp_path / "job.h5", SPEC, source, shard=Shard(1, 2))
    digits = make_source(num_test=70)
    other_digits = write_dataset(tmp_path / "digits.h5", SPEC, digits, shard=Shard(3, 3))
    copy = shutil.copy(one, tmp_path / "again.h5")
    for parts, message in (
        ([], "no parts are given"),
        ([one, three], r"of 3 shards these are missing: 2; generate them \(`--shard 2/3`\)"),
        ([one], "of 3 shards these are missing: 2, 3;"),
        ([one, two, three, copy], r"again\.h5 and .*1\.h5 are both shard 1/3; give each shard once"),
        ([one, two, other_spec.path], r"seed\.h5 and .*different datasets \(they differ in seed, num_valid\)"),
        ([one, two, other_job.path], r"job\.h5 is shard 1/2 and .*1\.h5 is shard 1/3; give the shards of one job"),
        ([one, two, other_digits.path], r"digits\.h5 and .*1\.h5 are made of different digits"),
        ([whole, one], r"d\.h5: a whole dataset, not a part of one"),
        ([one, tmp_path / "none.h5"], r"none\.h5: no such file"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            merge_parts(parts, tmp_path / "out.h5")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.h5").exists()
    with pytest.raises(DataError, match="exists; pass --force"):
        merge_parts([one, two, three], one)
    with pytest.raises(DataError, match="is one of the parts; choose another name"):
        merge_parts([one, two, three], one, force=True)


def test_parts_from_elsewhere_need_a_copy(source: DigitSource, whole: Path, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts", source, 2)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match=r"1\.h5: not in the folder of .*d\.h5, or below it, .*or use --copy"):
        merge_parts(parts, tmp_path / "other/d.h5")
    (tmp_path / "other/linked").symlink_to(tmp_path / "parts")
    with pytest.raises(DataError, match="or use --copy"):
        merge_parts([tmp_path / "other/linked/1.h5", tmp_path / "other/linked/2.h5"], tmp_path / "other/d.h5")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["linked"]
    merge_parts(parts, tmp_path / "other/d.h5", copy=True)
    assert (tmp_path / "other/d.h5").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("name", ["train/images", "valid/labels"])
def test_a_damaged_part_is_not_copied(name: str, source: DigitSource, tmp_path: Path) -> None:
    parts = write_parts(tmp_path, source, 2)
    with h5py.File(parts[1], "r+") as file:
        file[name][3] ^= 1
    with pytest.raises(DataError, match=rf"2\.h5: .*({name} holds impossible values|do not match their stored digest)"):
        merge_parts(parts, tmp_path / "d.h5", copy=True)
    assert not (tmp_path / "d.h5").exists()


@pytest.mark.parametrize("name", ["train/block_digest", "digits/train/images"])
def test_a_part_whose_digests_do_not_fit_is_not_merged(name: str, source: DigitSource, tmp_path: Path) -> None:
    parts = write_parts(tmp_path, source, 2)
    with h5py.File(parts[0], "r+") as file:
        file[name][0] ^= 1
    with pytest.raises(DataError, match=r"[12]\.h5: the contents do not match the stored digest"):
        merge_parts(parts, tmp_path / "d.h5")


def test_the_wrong_part_in_a_place_is_told(source: DigitSource, tmp_path: Path) -> None:
    parts = write_parts(tmp_path / "parts", source, 3)
    path = merge_parts(parts, tmp_path / "d.h5").path
    shutil.copy(parts[2], parts[1])
    with pytest.raises(DataError, match=r"its part .*2\.h5 is not shard 2/3 of the same dataset"):
        open_dataset(path)
    parts[1].unlink()
    with pytest.raises(
        DataError, match=r"its part parts/2\.h5 is missing; keep the parts .* `overlaycaps merge --copy`"
    ):
        open_dataset(path)
    faults = inspect_dataset(path).faults
    assert len(faults) == 1
    assert "its part parts/2.h5 is missing" in faults[0]


def test_an_interrupted_copy_leaves_nothing(source: DigitSource, tmp_path: Path) -> None:
    parts = write_parts(tmp_path, source, 2)

    def interrupt(split: str, done: int, total: int) -> None:
        if split == "valid":
            raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        merge_parts(parts, tmp_path / "d.h5", copy=True, progress=interrupt)
    assert sorted(tmp_path.iterdir()) == before
