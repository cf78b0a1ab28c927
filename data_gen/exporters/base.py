"""What an exporter is: a format for other programs that the samples of a dataset file can be written in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from data_gen.errors import DataError

if TYPE_CHECKING:
    from data_gen.store.read import OverlayFile
    from data_gen.store.write import Progress
    from data_gen.synthesis import SampleBlock


class ExportFunction(Protocol):
    """What an exporter's module offers under the name `export`."""

    def __call__(
        self, file: OverlayFile, out: Path, splits: Sequence[str], *, force: bool, progress: Progress | None
    ) -> int:
        """Write the samples of `splits`, which are in the order of `SPLITS` and each there once; return how many."""


@dataclass(frozen=True)
class Exporter:
    """One format, and the module that writes it.

    Attributes:
        name: what a user types.
        summary: one line for a help text.
        ending: what the default name of an export ends with, in place of the data file's suffix.
        module: where the function `export` is. Imported on use, so that a help text can show the table at once.
    """

    name: str
    summary: str
    ending: str
    module: str

    def default_out(self, path: Path) -> Path:
        """Return where to write an export of the file `path` by default: beside it, named after it."""
        return path.with_name(path.stem + self.ending)

    def export(
        self,
        file: OverlayFile,
        out: Path,
        splits: Sequence[str],
        *,
        force: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> int:
        """Write the samples of some splits to `out`, which appears only when it is complete.

        Every sample is compared with its digest on the way, and memory does not grow with the number of samples. The
        same samples and library versions give the same bytes.

        Args:
            file: a dataset, or a part of one.
            out: the file or folder to write; the folder it is in must exist.
            splits: names of splits, in any order.
            force: replace an existing export.
            progress: called with (split, samples written, samples in total) after every block.

        Returns:
            The number of samples written.

        Raises:
            DataError: `out` exists and `force` is false, is the data file or one of its parts, is something that no
                export wrote, or cannot be written; a split is unknown or none is asked for; or a sample is damaged.
        """
        from data_gen.spec import SPLITS, check_split  # noqa: PLC0415 - the table alone needs no specs
        from data_gen.store.replace import check_apart  # noqa: PLC0415

        if not splits:
            raise DataError(f"{file.path}: no split to export is named; choose from: {', '.join(SPLITS)}")
        wanted = {check_split(split) for split in splits}
        check_apart(out, [file.path, *file.parts])
        export = cast(ExportFunction, importlib.import_module(self.module).export)
        return export(file, out, [split for split in SPLITS if split in wanted], force=force, progress=progress)


def read_blocks(file: OverlayFile, split: str, progress: Progress | None = None) -> Iterator[tuple[int, SampleBlock]]:
    """Yield the samples of `split` block by block, each checked, with the index in the whole dataset of its first.

    Raises:
        DataError: a block is damaged.
    """
    from data_gen.synthesis import BLOCK_SIZE  # noqa: PLC0415

    num_samples, first = file.num(split), file.first(split)
    for start in range(0, num_samples, BLOCK_SIZE):
        stop = min(start + BLOCK_SIZE, num_samples)
        samples = file.read_samples(split, start, stop)
        file.check_samples(split, samples, start)
        yield first + start, samples
        if progress is not None:
            progress(split, stop, num_samples)
