from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image, ImageFont

from data_gen.composition import ABSENT, paste_layers
from data_gen.errors import DataError
from data_gen.preview import (
    CAPTION_PX,
    EQUALS_PX,
    HEADING_PX,
    MARGIN_PX,
    SAMPLE_GAP_PX,
    TITLE_PX,
    SheetLayout,
    choose_rows,
    draw_sheet,
    lay_out,
    save_sheet,
)
from data_gen.sharding import Shard
from data_gen.spec import SPLITS
from data_gen.store.merge import merge_parts
from data_gen.store.read import OverlayFile, open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import SampleBlock
from tests.data_gen.sources import make_source, make_tiny_spec

LONG_NAMES = tuple(f"{number} is a name of some length ..."[:32] for number in range(10))


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make_file(folder: Path, shard: Shard | None = None, names: tuple[str, ...] | None = None, **changes: Any) -> Path:
    path = folder / "d.h5"
    if names is None:
        source, spec = make_source(), make_tiny_spec(**changes)
    else:
        source, spec = make_source(class_names=names), make_tiny_spec(class_names=names, **changes)
    write_dataset(path, spec, source, shard=shard or Shard(1, 1))
    return path


def draw(path: Path, **options: Any) -> Any:
    with open_dataset(path) as file:
        return np.asarray(draw_sheet(file, **options))


def list_shown(file: OverlayFile, rows_per_split: int) -> tuple[SheetLayout, dict[str, SampleBlock]]:
    shown = {}
    for split in SPLITS:
        samples = file.read_split(split)
        shown[split] = samples[choose_rows(samples, rows_per_split)]
    return lay_out(file.spec, {split: len(shown[split]) for split in SPLITS}), shown


def cut(sheet: Any, x: int, y: int, width: int, height: int) -> Any:
    assert 0 <= x <= x + width <= sheet.shape[1]
    assert 0 <= y <= y + height <= sheet.shape[0]
    return sheet[y : y + height, x : x + width]


def has_ink(area: Any) -> bool:
    return bool((area != area[0, 0]).any())


@pytest.mark.parametrize("canvas_px", [12, 50, 64, 110])
@pytest.mark.parametrize("max_digits", [1, 2, 4])
def test_tiles_are_the_samples_and_their_layers(max_digits: int, canvas_px: int, tmp_path: Path) -> None:
    path = make_file(tmp_path, max_digits=max_digits, canvas_px=canvas_px)
    sheet = draw(path, rows_per_split=5)
    with open_dataset(path) as file:
        layout, shown = list_shown(file, 5)
        assert (sheet.shape[1], sheet.shape[0]) == layout.size_px
        assert sheet.shape[1] < 1800
        assert 70 <= layout.tile_px <= 165
        for split, samples in shown.items():
            assert len(samples) == 5
            layers = paste_layers(file.spec, file.read_pool(split), samples.source_index, samples.offset_px)
            for number in range(5):
                tiles = [samples.images[number]]
                tiles += [layer[number] for layer, d in zip(layers, samples.digits[number], strict=True) if d != ABSENT]
                for place, tile in enumerate(tiles):
                    x, y = layout.find_tile(split, number, place)
                    found = cut(sheet, x, y, layout.tile_px, layout.tile_px)
                    expected = tile.repeat(layout.scale, axis=0).repeat(layout.scale, axis=1)
                    assert (found == expected[:, :, None]).all()


@pytest.mark.parametrize("rows_per_split", [1, 3, 8])
def test_headings_and_captions_are_written_where_nothing_else_is(rows_per_split: int, tmp_path: Path) -> None:
    path = make_file(tmp_path, names=LONG_NAMES, max_digits=3)
    sheet = draw(path, rows_per_split=rows_per_split)
    background = sheet[0, 0]
    assert (background > 200).all()
    rest = sheet.copy()

    def take(x: int, y: int, width: int, height: int) -> None:
        assert has_ink(cut(sheet, x, y, width, height))
        rest[y : y + height, x : x + width] = background

    with open_dataset(path) as file:
        layout, shown = list_shown(file, rows_per_split)
        take(MARGIN_PX, MARGIN_PX - 4, sheet.shape[1] - 2 * MARGIN_PX, 26)
        take(MARGIN_PX, MARGIN_PX + 24, sheet.shape[1] - 2 * MARGIN_PX, TITLE_PX - 30)
        for split, samples in shown.items():
            take(MARGIN_PX, layout.find_heading(split), sheet.shape[1] - 2 * MARGIN_PX, HEADING_PX - 4)
            for number in range(len(samples)):
                x, y = layout.find_tile(split, number)
                # Frames are one pixel wide; captions are no wider than the sample and end above the next line.
                take(x - 1, y - 1, layout.sample_px + 2, layout.tile_px + 2)
                take(x, y + layout.tile_px + 3, layout.sample_px, 20)
                take(x, y + layout.tile_px + 23, layout.sample_px, CAPTION_PX - 34)
    assert np.argwhere((rest != background).any(axis=2)).tolist() == []


def test_parts_of_a_line_do_not_touch() -> None:
    for canvas_px in (12, 36, 64, 256):
        for max_digits in (1, 2, 3, 4):
            spec = make_tiny_spec(canvas_px=canvas_px, max_digits=max_digits)
            layout = lay_out(spec, {"train": 8, "valid": 3, "test": 0})
            places = [layout.find_tile("train", 0, place)[0] for place in range(max_digits + 1)]
            assert places[1] - places[0] == layout.tile_px + EQUALS_PX
            assert all(b - a >= layout.tile_px + 3 for a, b in pairwise(places))
            assert layout.find_tile("train", layout.num_columns)[1] == MARGIN_PX + TITLE_PX + HEADING_PX + (
                layout.tile_px + CAPTION_PX
            )
            right = layout.find_tile("train", layout.num_columns - 1)[0] + layout.sample_px
            assert right + MARGIN_PX == layout.size_px[0]
            if layout.num_columns > 1:
                assert layout.find_tile("train", 1)[0] - MARGIN_PX == layout.sample_px + SAMPLE_GAP_PX
            last_line = layout.find_tile("valid", 2)[1] + layout.tile_px + CAPTION_PX
            assert last_line < layout.find_heading("test") < layout.size_px[1] - HEADING_PX - MARGIN_PX


def test_each_number_of_digits_is_shown() -> None:
    digits = np.full((40, 4), ABSENT, np.int8)
    digits[:, 0] = 1
    digits[20:, 1] = 2
    digits[30:, 2] = 3
    zeros = np.zeros((40, 1), np.uint8)
    samples = SampleBlock(zeros, zeros, digits, zeros.astype("i4"), zeros.astype("i1"), zeros[:, 0].astype("f4"))
    assert choose_rows(samples, 5).tolist() == [0, 1, 2, 20, 30]
    assert choose_rows(samples, 2).tolist() == [0, 20]
    assert choose_rows(samples, 50).tolist() == list(range(40))
    assert choose_rows(samples[:0], 5).tolist() == []


def test_the_same_file_gives_the_same_sheet_whole_or_in_parts(tmp_path: Path) -> None:
    whole = make_file(tmp_path, num_train=2100)
    (tmp_path / "parts").mkdir()
    parts = [tmp_path / "parts" / f"{number}.h5" for number in (1, 2)]
    for number, part in enumerate(parts, start=1):
        write_dataset(part, make_tiny_spec(num_train=2100), make_source(), shard=Shard(number, 2))
    merged = tmp_path / "parts" / "d.h5"
    merge_parts(parts, merged)
    first = draw(whole)
    assert np.array_equal(first, draw(whole))
    assert np.array_equal(first, draw(merged))
    with open_dataset(parts[0]) as file:
        assert file.num("test") == 0
    for part in parts:
        assert not np.array_equal(first, draw(part))


def test_names_that_the_font_has_not_are_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(tmp_path, names=tuple("あいうえおかきくけこ"))
    odd = path.rename(tmp_path / "a\nb\udcff.h5")
    assert has_ink(draw(odd))
    load = ImageFont.load_default

    def load_old(size: float | None = None) -> Any:
        if size is not None:
            raise ImportError("this Pillow has no FreeType")
        return getattr(ImageFont, "load_default_imagefont", load)()

    monkeypatch.setattr(ImageFont, "load_default", load_old)
    assert has_ink(draw(odd))


def test_a_sheet_is_saved_as_png(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    out = tmp_path / "sheet.png"
    with open_dataset(path) as file:
        save_sheet(file, out, force=False)
        with Image.open(out) as image:
            assert image.format == "PNG"
            assert np.array_equal(np.asarray(image), np.asarray(draw_sheet(file)))
        before = out.read_bytes()
        with pytest.raises(DataError, match="exists; pass --force"):
            save_sheet(file, out, force=False)
        save_sheet(file, out, force=True)
        assert out.read_bytes() == before
    assert list_names(tmp_path) == ["d.h5", "sheet.png"]


def test_unusable_choices_are_refused(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    (tmp_path / "own.png").symlink_to(path)
    with open_dataset(path) as file:
        for name in ("sheet.jpg", "sheet", "d.h5"):
            with pytest.raises(DataError, match=f"{name}: a preview is a PNG image; choose a name that ends in .png"):
                save_sheet(file, tmp_path / name, force=True)
        with pytest.raises(DataError, match="is a data file that is read for this"):
            save_sheet(file, tmp_path / "own.png", force=True)
        for number in (0, 101, True, "8"):
            with pytest.raises(DataError, match="is out of range; use 1 to 100"):
                draw_sheet(file, rows_per_split=number)  # type: ignore[arg-type]
    assert list_names(tmp_path) == ["d.h5", "own.png"]


def test_damage_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    with h5py.File(path, "r+") as file:
        file["valid/images"][2, 3, 3] ^= 1
    with (
        open_dataset(path) as opened,
        pytest.raises(DataError, match="valid samples 0 to 9 do not match their stored digest"),
    ):
        save_sheet(opened, tmp_path / "sheet.png", force=False)
    assert list_names(tmp_path) == ["d.h5"]
