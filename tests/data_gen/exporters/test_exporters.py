from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from data_gen.errors import DataError
from data_gen.exporters import EXPORTERS, Exporter, get_exporter
from data_gen.sharding import Shard
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import SampleBlock
from tests.data_gen.sources import make_source, make_tiny_spec

NAMES = ("a", 'with "quotes", and a comma', "お", *"defghij")
SPEC = make_tiny_spec(num_train=1030, max_digits=3, class_names=NAMES)
BY_NAME = pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=EXPORTERS)

Samples = dict[str, Any]
"""The fields of `SampleBlock` by name."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "data.h5"
    write_dataset(path, SPEC, make_source(class_names=NAMES))
    return path


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two parts; the first holds train samples alone."""
    folder = tmp_path_factory.mktemp("parts")
    shards = [Shard(1, 2), Shard(2, 2)]
    for shard in shards:
        write_dataset(folder / f"{shard.number}.h5", SPEC, make_source(class_names=NAMES), shard=shard)
    return [folder / f"{shard.number}.h5" for shard in shards]


def read_npz(out: Path, split: str, spec: OverlaySpec, first: int) -> Samples:
    with np.load(out, allow_pickle=False) as arrays:
        assert OverlaySpec.from_json(str(arrays["spec"])) == spec
        assert tuple(arrays["class_names"].tolist()) == spec.class_names
        return {field.name: arrays[f"{split}_{field.name}"] for field in fields(SampleBlock)}


def read_png(out: Path, split: str, spec: OverlaySpec, first: int) -> Samples:
    content = json.loads((out / "spec.json").read_text(encoding="utf-8"))
    assert content["format"] == "overlaycaps.png"
    assert OverlaySpec.from_dict(content["spec"]) == spec
    with (out / f"{split}.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [int(row["index"]) for row in rows] == list(range(first, first + len(rows)))
    assert [row["file"] for row in rows] == [f"{split}/{first + number:08}.png" for number in range(len(rows))]
    assert sorted(path.name for path in (out / split).iterdir()) == [Path(row["file"]).name for row in rows]
    places = range(1, spec.max_digits + 1)

    def collect(dtype: str, *columns: str) -> Any:
        return np.array([[float(row[column]) for column in columns] for row in rows], dtype).reshape(
            len(rows), len(columns)
        )

    offsets = collect("i1", *(f"offset_{axis}_px_{place}" for place in places for axis in "yx"))
    digits = collect("i1", *(f"digit_{place}" for place in places))
    for row, shown in zip(rows, digits, strict=True):
        assert row["labels"] == " ".join(spec.class_names[number] for number in sorted(shown[shown >= 0]))
    return {
        "images": np.array([load_grey(out / row["file"]) for row in rows], "u1").reshape(
            -1, spec.canvas_px, spec.canvas_px
        ),
        "labels": (digits[:, :, None] == np.arange(spec.num_classes)).any(axis=1).astype("u1"),
        "digits": digits,
        "source_index": collect("i4", *(f"source_index_{place}" for place in places)),
        "offset_px": offsets.reshape(len(rows), spec.max_digits, 2),
        "overlap": collect("f4", "overlap")[:, 0],
    }


def load_grey(path: Path) -> Any:
    with Image.open(path) as image:
        assert image.mode == "L"
        return np.asarray(image)


READERS: dict[str, Callable[[Path, str, OverlaySpec, int], Samples]] = {"npz": read_npz, "png": read_png}


def run(exporter: Exporter, path: Path, out: Path, splits: tuple[str, ...] = SPLITS, **options: Any) -> int:
    with open_dataset(path) as file:
        return exporter.export(file, out, splits, **options)


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def list_bytes(out: Path) -> dict[str, bytes]:
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def check_values(exporter: Exporter, path: Path, out: Path) -> None:
    """Compare an export, read back, with the file."""
    with open_dataset(path) as file:
        for split in SPLITS:
            expected = file.read_split(split)
            found = READERS[exporter.name](out, split, file.spec, file.first(split))
            for field in fields(SampleBlock):
                values = getattr(expected, field.name)
                assert found[field.name].dtype == values.dtype
                assert np.array_equal(found[field.name], values), (split, field.name)


@BY_NAME
def test_the_values_are_those_of_the_file(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / exporter.default_out(whole).name
    assert run(exporter, whole, out) == 1060
    check_values(exporter, whole, out)


@BY_NAME
def test_parts_and_files_that_refer_to_parts_can_be_exported(
    exporter: Exporter, parts: list[Path], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / exporter.default_out(whole).name
    num_samples = 0
    for part in parts:
        num_samples += run(exporter, part, out, force=True)
        check_values(exporter, part, out)
    assert num_samples == 1060
    with open_dataset(parts[0]) as file:
        assert file.num("test") == 0
    with open_dataset(parts[1]) as file:
        assert file.first("train") > 0
    merged = parts[0].with_name(f"{exporter.name}.h5")
    merge_parts(parts, merged)
    run(exporter, merged, out, force=True)
    run(exporter, whole, other := tmp_path / f"other{out.suffix}")
    assert list_bytes(out) == list_bytes(other)


@BY_NAME
def test_splits_that_are_not_asked_for_are_left_out(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    out, other = tmp_path / f"a{exporter.ending}", tmp_path / f"b{exporter.ending}"
    assert run(exporter, whole, out, ("test", "valid", "test")) == 30
    assert run(exporter, whole, other, ("valid", "test")) == 30
    assert list_bytes(out) == list_bytes(other)
    with open_dataset(whole) as file:
        READERS[exporter.name](out, "valid", file.spec, 0)
        with pytest.raises((KeyError, FileNotFoundError)):
            READERS[exporter.name](out, "train", file.spec, 0)


@BY_NAME
def test_the_same_samples_give_the_same_bytes(
    exporter: Exporter, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / f"a{exporter.ending}", tmp_path / f"b{exporter.ending}"
    run(exporter, whole, first, ("test",))
    monkeypatch.setattr("time.time", lambda: 2e9)
    run(exporter, whole, second, ("test",))
    assert list_bytes(first) == list_bytes(second)


@BY_NAME
def test_progress_counts_every_block(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    run(exporter, whole, tmp_path / f"a{exporter.ending}", progress=lambda *call: calls.append(call))
    assert calls == [
        ("train", 1024, 1030),
        ("train", 1030, 1030),
        ("valid", 10, 10),
        ("test", 20, 20),
    ]


@BY_NAME
def test_an_existing_export_is_kept_without_force(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / f"a{exporter.ending}"
    run(exporter, whole, out, ("test",))
    before = list_bytes(out)
    with pytest.raises(DataError) as caught:
        run(exporter, whole, out, ("valid",))
    assert str(caught.value) == f"{out} exists; pass --force to replace it, or choose another name"
    assert list_bytes(out) == before
    run(exporter, whole, out, ("valid",), force=True)
    assert list_bytes(out) != before
    assert list_names(tmp_path) == [out.name]


@BY_NAME
@pytest.mark.parametrize("had_one", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_an_interrupt_leaves_everything_as_it_was(
    kind: type[BaseException], had_one: bool, exporter: Exporter, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / f"a{exporter.ending}"
    if had_one:
        run(exporter, whole, out, ("test",))
    before = list_bytes(out) if had_one else {}

    def interrupt(split: str, done: int, total: int) -> None:
        if split == "valid":
            raise kind

    with pytest.raises((KeyboardInterrupt, DataError)):
        run(exporter, whole, out, force=True, progress=interrupt)
    assert list_names(tmp_path) == [out.name] * had_one
    assert not had_one or list_bytes(out) == before


@BY_NAME
def test_a_damaged_sample_is_not_exported(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "d.h5"
    damaged.write_bytes(whole.read_bytes())
    with h5py.File(damaged, "r+") as file:
        file["train/images"][1026, 3, 3] ^= 1
    with pytest.raises(DataError) as caught:
        run(exporter, damaged, tmp_path / f"a{exporter.ending}")
    assert str(caught.value).startswith(f"{damaged}: train samples 1,024 to 1,029 do not match their stored digest")
    assert list_names(tmp_path) == ["d.h5"]
    assert run(exporter, damaged, tmp_path / f"a{exporter.ending}", ("test",)) == 20


@BY_NAME
def test_the_data_file_is_never_replaced(exporter: Exporter, whole: Path, parts: list[Path], tmp_path: Path) -> None:
    merged = parts[0].with_name(f"own-{exporter.name}.h5")
    merge_parts(parts, merged)
    before = whole.read_bytes()
    link = tmp_path / "a.npz"
    link.symlink_to(whole)
    for path, out in ((whole, whole), (whole, link), (merged, parts[1]), (link, whole)):
        with pytest.raises(DataError, match="is a data file that is read for this; choose another name"):
            run(exporter, path, out, force=True)
    assert whole.read_bytes() == before


@BY_NAME
def test_unusable_choices_are_refused(exporter: Exporter, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / f"a{exporter.ending}"
    for splits, reason in [((), "no split to export is named"), (("train", "tset"), "there is no split 'tset'")]:
        with pytest.raises(DataError, match=reason):
            run(exporter, whole, out, splits)
    with pytest.raises(DataError, match=f"the folder {tmp_path / 'no'} does not exist; create it first"):
        run(exporter, whole, tmp_path / "no" / out.name)
    assert list_names(tmp_path) == []


def test_an_npz_file_is_called_so(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.zip: an export to npz needs a name that ends in \.npz"):
        run(EXPORTERS["npz"], whole, tmp_path / "a.zip")


def add_file(out: Path) -> None:
    (out / "notes.txt").write_text("mine")


def add_image(out: Path) -> None:
    (out / "test" / "best.png").write_text("mine")


def add_folder(out: Path) -> None:
    (out / "test" / "00000000.png").unlink()
    (out / "test" / "00000000.png").mkdir()


def add_link(out: Path) -> None:
    (out / "train").symlink_to(out / "test")


def remove_spec(out: Path) -> None:
    (out / "spec.json").unlink()


def change_spec(out: Path) -> None:
    (out / "spec.json").write_text("[1]")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (add_file, "holds 'notes.txt', which is not of an export; it is not replaced"),
        (add_image, "holds 'test/best.png', which is not of an export; it is not replaced"),
        (add_folder, "holds 'test/00000000.png', which is not of an export; it is not replaced"),
        (add_link, "holds 'train', which is not of an export; it is not replaced"),
        (remove_spec, "exists and is no export to png"),
        (change_spec, "exists and is no export to png"),
    ],
)
def test_a_folder_with_anything_else_in_it_is_kept(
    change: Callable[[Path], None], reason: str, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a"
    run(EXPORTERS["png"], whole, out, ("test",))
    change(out)
    before = list_bytes(out)
    for force in (False, True):
        with pytest.raises(DataError) as caught:
            run(EXPORTERS["png"], whole, out, ("test",), force=force)
        assert str(caught.value).startswith(f"{out} {reason}")
        assert "\n" not in str(caught.value)
    assert list_bytes(out) == before
    assert list_names(tmp_path) == ["a"]


def test_default_names_stand_beside_the_data_file() -> None:
    found = {name: exporter.default_out(Path("x/data.h5")) for name, exporter in EXPORTERS.items()}
    assert found == {"npz": Path("x/data.npz"), "png": Path("x/data-png")}


def test_the_table_is_light_and_refuses_unknown_names() -> None:
    with pytest.raises(DataError, match="--to 'pngs' is unknown; did you mean png"):
        get_exporter("pngs")
    for name, exporter in EXPORTERS.items():
        assert get_exporter(name) is exporter
        assert exporter.name == name
        assert exporter.summary
    script = "import sys, data_gen.exporters; print(sorted({'numpy', 'h5py', 'PIL', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
