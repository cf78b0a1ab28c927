"""A sheet of samples to look at: each overlay, the digits that it is made of, and its labels.

Geometry, in pixels of the sheet:

    title
    split
    [overlay] = [layer] [layer]   [overlay] = [layer]   ...       tiles: `tile_px` high and wide
    names of the classes          ...                             caption
    overlap, index                ...
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from data_gen.composition import ABSENT, paste_layers
from data_gen.errors import DataError, show_value
from data_gen.sharding import WHOLE
from data_gen.spec import SPLITS, OverlaySpec
from data_gen.store.read import OverlayFile
from data_gen.store.replace import check_apart, check_target, replacing
from data_gen.synthesis import BLOCK_SIZE, SampleBlock

MAX_ROWS = 100
"""Most samples of a split on a sheet."""

MARGIN_PX = 24
TITLE_PX = 64
"""Height of the two lines at the top."""

HEADING_PX = 34
CAPTION_PX = 58
"""Height of the two lines below a sample, and what keeps them apart from the next."""

SPLIT_GAP_PX = 6
EQUALS_PX = 20
"""Between an overlay and its layers."""

LAYER_GAP_PX = 6
SAMPLE_GAP_PX = 30

_TARGET_TILE_PX = 108
_MAX_WIDTH_PX = 1800
_COLUMNS = (4, 2, 1)

_BACKGROUND = (247, 247, 245)
_INK = (32, 33, 36)
_FAINT = (102, 105, 110)
_RULE = (208, 209, 212)

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class SheetLayout:
    """Where things are on a sheet.

    Attributes:
        scale: pixels of the sheet for one of the canvas, in y and in x.
        tile_px: height and width of an overlay and of a layer.
        num_columns: samples beside each other.
        sample_px: width of a sample with all of its layers.
        num_samples: by split, samples shown.
    """

    scale: int
    tile_px: int
    num_columns: int
    sample_px: int
    num_samples: dict[str, int]

    @property
    def size_px(self) -> tuple[int, int]:
        """Width and height of the sheet."""
        width = 2 * MARGIN_PX + self.num_columns * self.sample_px + (self.num_columns - 1) * SAMPLE_GAP_PX
        height = MARGIN_PX + TITLE_PX + sum(map(self._measure_split, self.num_samples)) + MARGIN_PX
        return width, height

    def find_heading(self, split: str) -> int:
        """Return the y of a split's heading."""
        before = list(self.num_samples)[: list(self.num_samples).index(split)]
        return MARGIN_PX + TITLE_PX + sum(map(self._measure_split, before))

    def _measure_split(self, split: str) -> int:
        """Return the height of a split with its heading; one without samples says so in one line."""
        num_lines = -(-self.num_samples[split] // self.num_columns)
        return HEADING_PX + (num_lines * (self.tile_px + CAPTION_PX) or HEADING_PX) + SPLIT_GAP_PX

    def find_tile(self, split: str, number: int, place: int = 0) -> tuple[int, int]:
        """Return x and y of the upper left corner of a tile.

        Args:
            split: name of the split.
            number: which of the samples shown, from 0.
            place: 0 for the overlay, k for the layer of the k-th digit.
        """
        line, column = divmod(number, self.num_columns)
        x = MARGIN_PX + column * (self.sample_px + SAMPLE_GAP_PX)
        if place:
            x += self.tile_px + EQUALS_PX + (place - 1) * (self.tile_px + LAYER_GAP_PX)
        return x, self.find_heading(split) + HEADING_PX + line * (self.tile_px + CAPTION_PX)


def lay_out(spec: OverlaySpec, num_samples: dict[str, int]) -> SheetLayout:
    """Return the layout of a sheet that shows `num_samples` of each split."""
    scale = max(1, round(_TARGET_TILE_PX / spec.canvas_px))
    tile_px = scale * spec.canvas_px
    num_places = spec.most_digits
    sample_px = tile_px + EQUALS_PX + num_places * tile_px + (num_places - 1) * LAYER_GAP_PX
    fitting = (columns for columns in _COLUMNS if columns * (sample_px + SAMPLE_GAP_PX) <= _MAX_WIDTH_PX)
    return SheetLayout(scale, tile_px, next(fitting, 1), sample_px, num_samples)


def draw_sheet(file: OverlayFile, *, rows_per_split: int = 8) -> Image.Image:
    """Draw samples of every split: each overlay, then the layers of its digits alone, and a caption.

    The samples are the first of the file, with one for each number of digits that the first block of the split has. The
    same file gives the same sheet.

    Args:
        file: a dataset, or a part of one.
        rows_per_split: how many samples of each split, 1 to `MAX_ROWS`; fewer where there are not so many.

    Returns:
        An RGB image. `lay_out` says where things are on it.

    Raises:
        DataError: `rows_per_split` is out of range, or the file is damaged where it was read.
    """
    if type(rows_per_split) is not int or not 1 <= rows_per_split <= MAX_ROWS:
        raise DataError(f"rows_per_split {show_value(rows_per_split)} is out of range; use 1 to {MAX_ROWS}")
    rows, blocks = {}, {}
    for split in SPLITS:
        block = file.read_samples(split, 0, min(BLOCK_SIZE, file.num(split)))
        if len(block):
            file.check_samples(split, block, 0)
        rows[split] = choose_rows(block, rows_per_split)
        blocks[split] = block[rows[split]]
    layout = lay_out(file.spec, {split: len(rows[split]) for split in SPLITS})
    sheet = Image.new("RGB", layout.size_px, _BACKGROUND)
    pen = _Pen(sheet)
    _draw_title(pen, file, layout)
    for split in SPLITS:
        _draw_split(pen, file, layout, split, file.first(split) + rows[split], blocks[split])
    return sheet


def save_sheet(file: OverlayFile, path: Path, *, force: bool, rows_per_split: int = 8) -> None:
    """Draw a sheet, see `draw_sheet`, and write it to a PNG file, which appears only when it is complete.

    Raises:
        DataError: as `draw_sheet`; `path` does not end in .png, exists and `force` is false, or cannot be written.
    """
    check_sheet_target(path, force=force)
    check_apart(path, [file.path, *file.parts])
    sheet = draw_sheet(file, rows_per_split=rows_per_split)
    with replacing(path, 3 * sheet.width * sheet.height + 2**16, force=force) as temporary:
        sheet.save(temporary, format="PNG")


def check_sheet_target(path: Path, *, force: bool) -> None:
    """Check, perhaps long before there is a sheet, that it can be written to `path`.

    Raises:
        DataError: `path` does not end in .png, exists and `force` is false, or cannot be written.
    """
    if path.suffix.lower() != ".png":
        raise DataError(f"{path}: a preview is a PNG image; choose a name that ends in .png")
    check_target(path, force=force)


def choose_rows(samples: SampleBlock, num_rows: int) -> NDArray[np.int64]:
    """Return the rows of `samples` to show, in their order: the first, but one of each number of digits."""
    counts = (samples.digits != ABSENT).sum(axis=1)
    firsts = np.sort(np.unique(counts, return_index=True)[1])[:num_rows]
    others = np.setdiff1d(np.arange(len(samples)), firsts)[: num_rows - len(firsts)]
    return np.sort(np.concatenate([firsts, others])).astype(np.int64)


class _Pen:
    """Draws text and images on a sheet."""

    def __init__(self, sheet: Image.Image) -> None:
        self.sheet = sheet
        self.draw = ImageDraw.Draw(sheet)
        self.fonts: dict[int, _Font] = {}

    def write(
        self,
        position: tuple[int, int],
        text: str,
        size_px: int,
        color: tuple[int, int, int] = _INK,
        width_px: int | None = None,
    ) -> int:
        """Write one line whose upper left corner is `position`, cut off to a width; return the x where it ends."""
        font = self._load_font(size_px)
        text = "".join(character if character.isprintable() else "?" for character in text)  # names of files
        if isinstance(font, ImageFont.ImageFont):  # Pillow's old font has Latin-1 alone
            text = text.encode("latin-1", "replace").decode("latin-1")
        if width_px is not None and font.getlength(text) > width_px:
            while text and font.getlength(text + "...") > width_px:
                text = text[:-1]
            text += "..."
        self.draw.text(position, text, fill=color, font=font)
        return position[0] + round(font.getlength(text))

    def paste(self, position: tuple[int, int], image: NDArray[np.uint8], scale: int) -> None:
        """Paste a grey image, each pixel `scale` high and wide, with a thin frame around it."""
        x, y = position
        tile = Image.fromarray(np.kron(image, np.ones((scale, scale), np.uint8)))
        self.draw.rectangle((x - 1, y - 1, x + tile.width, y + tile.height), outline=_FAINT)
        self.sheet.paste(tile, position)

    def draw_equals(self, position: tuple[int, int]) -> None:
        """Draw an equals sign with its centre at `position`."""
        x, y = position
        for dy in (-3, 2):
            self.draw.rectangle((x - 4, y + dy, x + 3, y + dy + 1), fill=_FAINT)

    def _load_font(self, size_px: int) -> _Font:
        if size_px not in self.fonts:
            try:
                self.fonts[size_px] = ImageFont.load_default(size_px)
            except (ImportError, OSError):  # a Pillow that was built without FreeType
                self.fonts[size_px] = ImageFont.load_default()
        return self.fonts[size_px]


def _draw_title(pen: _Pen, file: OverlayFile, layout: SheetLayout) -> None:
    spec = file.spec
    width = layout.size_px[0] - 2 * MARGIN_PX
    facts = [
        f"protocol {spec.protocol}",
        f"seed {spec.seed}",
        f"merge {spec.merge}",
        f"canvas {spec.canvas_px} x {spec.canvas_px} px",
    ]
    if file.shard != WHOLE:
        facts.append(f"part {file.shard}")
    pen.write((MARGIN_PX, MARGIN_PX - 4), file.path.name, 22, width_px=width)
    pen.write((MARGIN_PX, MARGIN_PX + 26), ",  ".join(facts), 15, _FAINT, width_px=width)


def _draw_split(
    pen: _Pen, file: OverlayFile, layout: SheetLayout, split: str, indices: NDArray[np.int64], samples: SampleBlock
) -> None:
    top, right = layout.find_heading(split), layout.size_px[0] - MARGIN_PX
    end = pen.write((MARGIN_PX, top), split, 17)
    end = pen.write((end + 10, top + 3), f"{file.num(split):,} samples", 14, _FAINT)
    pen.draw.rectangle((end + 12, top + 12, right - 1, top + 12), fill=_RULE)
    if not len(samples):
        pen.write((MARGIN_PX, top + HEADING_PX), "none in this part", 14, _FAINT)
        return
    layers = paste_layers(file.spec, file.read_pool(split), samples.source_index, samples.offset_px)
    for number in range(len(samples)):
        x, y = layout.find_tile(split, number)
        present = samples.digits[number] != ABSENT
        pen.paste((x, y), samples.images[number], layout.scale)
        pen.draw_equals((x + layout.tile_px + EQUALS_PX // 2, y + layout.tile_px // 2))
        for place in np.flatnonzero(present):
            corner = layout.find_tile(split, number, int(place) + 1)
            pen.paste(corner, layers[place, number], layout.scale)
        names = [file.spec.class_names[digit] for digit in samples.digits[number][present]]
        below = y + layout.tile_px + 5
        pen.write((x, below), " + ".join(names), 16, width_px=layout.sample_px)
        caption = f"overlap {samples.overlap[number]:.2f},  index {indices[number]}"
        pen.write((x, below + 19), caption, 13, _FAINT, width_px=layout.sample_px)
