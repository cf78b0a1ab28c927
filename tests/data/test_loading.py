"""What a run trains on: in memory, in the file, or fresh; the same numbers wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from data_gen.digits import DigitSource
from data_gen.errors import DataError
from data_gen.sharding import Shard
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import synthesize
from overlaycaps.data import loading
from overlaycaps.data.loading import load_data
from overlaycaps.data.splits import FreshSplit, MemorySplit, StoredSplit, derive_fresh_spec
from tests.data_gen.sources import make_source, make_tiny_spec

SPEC = make_tiny_spec(num_train=3000, single_fraction=0.0)


@pytest.fixture(scope="module")
def source() -> DigitSource:
    return make_source()


@pytest.fixture(scope="module")
def path(source: DigitSource, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "d.h5", SPEC, source).path


def test_a_split_in_the_file_gives_what_a_split_in_memory_gives(path: Path) -> None:
    data, large = load_data(path), load_data(path, max_memory_bytes=100_000)
    assert isinstance(data.train, MemorySplit)
    assert isinstance(large.train, StoredSplit)
    assert isinstance(large.valid, MemorySplit)
    positions = torch.randperm(3000)[:200]
    for found, expected in zip(large.train.draw(0, positions), data.train.draw(0, positions), strict=True):
        assert torch.equal(found, expected)
    assert len(large.train) == len(data.train) == 3000
    assert large.describe() == data.describe()


def test_data_in_parts_is_the_same_data(source: DigitSource, path: Path, tmp_path: Path) -> None:
    parts = [write_dataset(tmp_path / f"{n}.h5", SPEC, source, shard=Shard(n, 3)).path for n in (1, 2, 3)]
    whole = merge_parts(parts, tmp_path / "whole.h5").path
    data, expected = load_data(whole), load_data(path)
    assert data.digest == expected.digest
    assert torch.equal(data.train.draw(0, torch.arange(3000))[0], expected.train.draw(0, torch.arange(3000))[0])
    with pytest.raises(DataError, match=r"2\.h5: shard 2/3 of a dataset, not the whole; .* `overlaycaps merge`"):
        load_data(parts[1])
    parts[2].unlink()
    with pytest.raises(DataError, match=r"its part 3\.h5 is missing; keep the parts"):
        load_data(whole)


@pytest.mark.parametrize("name", ["train/images", "test/images", "digits/train/images"])
def test_data_that_was_changed_is_not_trained_on(name: str, path: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.h5"
    changed.write_bytes(path.read_bytes())
    with h5py.File(changed, "r+") as file:
        file[name][7, 2, 2] ^= 1
    for max_memory_bytes in (2**30, 1000):  # in memory, and too large for it
        with pytest.raises(DataError, match=r"changed\.h5: .*stored digest.*: damaged or changed; generate"):
            load_data(changed, max_memory_bytes=max_memory_bytes)


def draw(split: Any, epoch: int) -> torch.Tensor:
    images: torch.Tensor = split.draw(epoch, torch.arange(len(split)))[0]
    return images


def test_fresh_overlays_differ_by_epoch_and_seed_and_come_again(path: Path) -> None:
    first, again, other = (load_data(path, fresh_seed=seed).train for seed in (0, 0, 1))
    stored = load_data(path).train
    epochs = [draw(first, epoch) for epoch in range(3)]
    for epoch in range(3):
        assert torch.equal(draw(again, epoch), epochs[epoch])
    drawn = [*epochs, draw(other, 0), draw(stored, 0)]
    images = {image.numpy().tobytes() for part in drawn for image in part}
    assert len(images) > 0.999 * 5 * 3000  # by chance, a pair with its shifts may come twice


def test_fresh_overlays_are_drawn_as_the_spec_says_from_the_training_digits(path: Path) -> None:
    fresh = load_data(path, fresh_seed=5).train
    assert isinstance(fresh, FreshSplit)
    with open_dataset(path) as file:
        pool = file.read_pool("train")
    samples = synthesize(derive_fresh_spec(SPEC, 5), pool, "train", 3000, 6000)
    images, labels = fresh.draw(1, torch.arange(3000))
    assert np.array_equal(images.numpy(), samples.images)
    assert np.array_equal(labels.numpy(), samples.labels)
    assert derive_fresh_spec(SPEC, 5).to_dict() == {**SPEC.to_dict(), "seed": fresh.spec.seed}


def test_what_could_be_generated_can_be_drawn_fresh_with_any_seed(
    source: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundredth of all draws have such an overlap, the least that `generate` takes: its own sample of draws has a
    # little less with some seeds, and a little more with others.
    spec = make_tiny_spec(single_fraction=0.0, overlap=(0.393, 1.0))
    accepted = []
    for seed in range(20):
        try:
            accepted.append(write_dataset(tmp_path / f"{seed}.h5", replace(spec, seed=seed), source).path)
        except DataError as error:
            assert "fewer than 1 % of the samples of 2 digits have such an overlap" in str(error)
    assert 0 < len(accepted) < 20
    for seed in range(10):
        images, _ = load_data(accepted[0], fresh_seed=seed).train.draw(0, torch.arange(30))
        assert len(images) == 30
    monkeypatch.setattr(loading, "derive_fresh_spec", lambda spec, seed: replace(spec, min_overlap=0.9))
    with pytest.raises(DataError, match=r"\d\.h5: no fresh overlays can be drawn from it \(--overlap 0\.9:1: none of"):
        load_data(accepted[0], fresh_seed=0)


def test_any_process_draws_its_share_of_a_batch_alone(path: Path) -> None:
    fresh = load_data(path, fresh_seed=0).train
    whole, labels = fresh.draw(2, torch.arange(1000, 1064))
    for rank in range(4):
        share, named = load_data(path, fresh_seed=0).train.draw(2, torch.arange(1000 + rank, 1064, 4))
        assert torch.equal(share, whole[rank::4])
        assert torch.equal(named, labels[rank::4])
