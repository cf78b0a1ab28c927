"""The dataset for loops of one's own: the file's values, whoever reads them, in whichever process."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from data_gen.errors import DataError
from data_gen.store.read import SAMPLE_NAMES, open_dataset
from overlaycaps import OverlayDataset


def invert(sample: dict[str, torch.Tensor]) -> torch.Tensor:
    """A transform that spawned workers can import."""
    return 255 - sample["images"]


def hash_images(loader: Any) -> list[str]:
    return [hashlib.sha256(image.numpy().tobytes()).hexdigest() for batch in loader for image in batch["images"]]


def test_samples_are_those_of_the_file(tiny_data: Path) -> None:
    for split, num in (("train", 96), ("valid", 40), ("test", 48)):
        dataset = OverlayDataset(tiny_data, split)
        assert len(dataset) == num
        assert dataset.spec.class_names == tuple("0123456789")
        with open_dataset(tiny_data) as file:
            expected = file.read_split(split)
        batch = next(iter(DataLoader(dataset, batch_size=num)))
        assert list(batch) == list(SAMPLE_NAMES)
        for name in SAMPLE_NAMES:
            found = batch[name].numpy()
            assert found.dtype == getattr(expected, name).dtype, name
            assert np.array_equal(found, getattr(expected, name)), name


def test_one_sample_has_the_documented_shapes(tiny_data: Path) -> None:
    sample = OverlayDataset(tiny_data)[-1]
    shapes = {name: (str(value.dtype), tuple(value.shape)) for name, value in sample.items()}
    assert shapes == {
        "images": ("torch.uint8", (36, 36)),
        "labels": ("torch.uint8", (10,)),
        "digits": ("torch.int8", (2,)),
        "source_index": ("torch.int32", (2,)),
        "offset_px": ("torch.int8", (2, 2)),
        "overlap": ("torch.float32", ()),
    }
    with open_dataset(tiny_data) as file:
        assert np.array_equal(sample["images"].numpy(), file.read_split("train").images[95])


def test_fewer_fields_and_a_transform(tiny_data: Path) -> None:
    dataset = OverlayDataset(tiny_data, fields=("labels", "images"))
    assert list(dataset[0]) == ["labels", "images"]
    assert torch.equal(OverlayDataset(tiny_data, transform=invert)[3], 255 - dataset[3]["images"])
    with pytest.raises(DataError, match="no field 'image'; choose from: images, labels,"):
        OverlayDataset(tiny_data, fields=("image",))


def test_indices_and_splits_that_do_not_exist_are_refused(tiny_data: Path, tmp_path: Path) -> None:
    dataset = OverlayDataset(tiny_data)
    for index in (96, -97):
        with pytest.raises(IndexError, match=f"samples 0 to 95, and no {index}$"):
            dataset[index]
    with pytest.raises(DataError, match="no split 'dev'; choose from: train, valid, test"):
        OverlayDataset(tiny_data, "dev")
    with pytest.raises(DataError, match="no such file; make it with `overlaycaps generate"):
        OverlayDataset(tmp_path / "none.h5")


def test_a_dataset_that_was_read_can_be_pickled(tiny_data: Path) -> None:
    dataset = OverlayDataset(tiny_data)
    first = dataset[0]["images"]
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(copy[0]["images"], first)
    assert torch.equal(dataset[0]["images"], first)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_what_one_process_reads(start: str, tiny_data: Path) -> None:
    dataset = OverlayDataset(tiny_data)
    assert dataset[0]["images"].shape == (36, 36)  # the file is open when the workers start
    alone = hash_images(DataLoader(dataset, batch_size=8))
    together = hash_images(DataLoader(dataset, batch_size=8, num_workers=4, multiprocessing_context=start))
    assert together == alone
    assert len(set(alone)) == 96


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_every_sample_comes_once_whatever_the_workers(tiny_data: Path) -> None:
    part = torch.utils.data.Subset(OverlayDataset(tiny_data), range(13))
    loader = DataLoader(part, batch_size=4, num_workers=3, shuffle=True, multiprocessing_context="fork")
    assert len(loader) == 4
    assert sorted(hash_images(loader)) == sorted(hash_images(DataLoader(part)))


def test_the_package_imports_torch_only_when_the_dataset_is_asked_for() -> None:
    script = (
        "import sys, overlaycaps\n"
        "assert 'torch' not in sys.modules\n"
        "overlaycaps.OverlayDataset\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
    with pytest.raises(AttributeError, match="no attribute 'OverlayDatasets'"):
        _ = __import__("overlaycaps").OverlayDatasets
