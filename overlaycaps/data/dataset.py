"""A data file as a ``torch.utils.data.Dataset``, for training loops of one's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from data_gen.errors import DataError
from data_gen.store.read import SAMPLE_NAMES, OverlayFile, open_dataset

Sample = dict[str, Tensor]


class OverlayDataset(Dataset[Any]):
    """The samples of one split of a data file, read one by one or batch by batch; no more is held in memory.

    A sample is a dictionary; its names are those of the file, and of a batch that a DataLoader makes of them. C is the
    number of classes, K that of places for digits:

    - ``images``: uint8 (H, W), 0 is background
    - ``labels``: uint8 (C,), multi-hot
    - ``digits``: int8 (K,), class of each digit, -1 where absent
    - ``source_index``: int32 (K,), row of each digit among those that the split draws from, -1 where absent
    - ``offset_px``: int8 (K, 2), shift (y, x) of each digit from the centre, 0 where absent
    - ``overlap``: float32 (), share of inked pixels that two digits or more ink

    The file is opened by each process that reads, when it first does: the dataset can be pickled at any time, and
    works with a DataLoader's workers however they are started. It does not change from epoch to epoch; a DataLoader
    shuffles it.

    Args:
        path: the file that ``overlaycaps generate`` wrote.
        split: ``train``, ``valid`` or ``test``.
        fields: which of the names a sample has; fewer are read faster.
        transform: applied to each sample, in the process that read it; must be picklable for spawned workers.

    Attributes:
        path: the file.
        split: the split.
        spec: the dataset's choices, an ``OverlaySpec``; ``spec.class_names`` are the names of the classes.

    Raises:
        data_gen.errors.DataError: if the file is missing or cannot be used, or a name is unknown.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str = "train",
        *,
        fields: Sequence[str] = SAMPLE_NAMES,
        transform: Callable[[Sample], Any] | None = None,
    ) -> None:
        unknown = [name for name in fields if name not in SAMPLE_NAMES]
        if unknown:
            raise DataError(f"a sample has no field {unknown[0]!r}; choose from: {', '.join(SAMPLE_NAMES)}")
        self.path, self.split, self.transform = Path(path).absolute(), split, transform
        self._fields = tuple(fields)
        self._file: OverlayFile | None = None
        self._pid = 0
        with open_dataset(path) as file:
            self.spec = file.spec
            self._num = file.num(split)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._num

    def __getitem__(self, index: int) -> Any:
        """Return a sample; negative indices count from the end, as in a list.

        Raises:
            IndexError: if there is no such sample.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return several samples, read together: a DataLoader asks for its batches like this."""
        rows = [index + self._num if index < 0 else index for index in indices]
        for index, row in zip(indices, rows, strict=True):
            if not 0 <= row < self._num:
                raise IndexError(f"{self.path}: {self.split} has samples 0 to {self._num - 1}, and no {index}")
        values = self._open().read_rows(self.split, rows, self._fields)
        tensors = {name: torch.from_numpy(column) for name, column in values.items()}
        samples = [{name: column[place] for name, column in tensors.items()} for place in range(len(indices))]
        return samples if self.transform is None else [self.transform(sample) for sample in samples]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the open file, which belongs to this process."""
        return {**vars(self), "_file": None, "_pid": 0}

    def _open(self) -> OverlayFile:
        # A forked process inherits the open file, but must not use it: both would move it about.
        if self._file is None or self._pid != os.getpid():
            # Parts were checked when the dataset was made; here each is when it is first read.
            self._file, self._pid = open_dataset(self.path, check_parts=False), os.getpid()
        return self._file
