"""Flipped bytes: a file is read as it was, or refused in one line; whatever the bytes, nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import h5py
import numpy as np
import pytest

from data_gen.errors import DataError
from data_gen.sharding import Shard
from data_gen.store import mappings
from data_gen.store.inspect import inspect_dataset
from data_gen.store.merge import merge_parts
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import SampleBlock
from tests.data_gen.sources import make_source, make_tiny_spec

ROOT = Path(__file__).parents[3]
NUM_FLIPS = 100


def list_metadata(path: Path) -> np.ndarray:
    """Return the places of all bytes that are not values of a dataset: headers, indices, names, attributes."""
    is_value = np.zeros(path.stat().st_size, bool)

    def mark(_name: str, node: object) -> None:
        if not isinstance(node, h5py.Dataset):
            return
        if node.chunks is None:
            start = node.id.get_offset()
            is_value[start : start + node.id.get_storage_size()] = True
            return
        for number in range(node.id.get_num_chunks()):
            chunk = node.id.get_chunk_info(number)
            is_value[chunk.byte_offset : chunk.byte_offset + chunk.size] = True

    with h5py.File(path) as file:
        file.visititems(mark)
    return np.flatnonzero(~is_value)


def choose_flips(path: Path) -> Iterator[tuple[int, int]]:
    """Yield places and what to flip there: seven of eight in the metadata, of which there is little."""
    rng = np.random.default_rng(20)
    metadata, size = list_metadata(path), path.stat().st_size
    for number in range(NUM_FLIPS):
        place = rng.integers(size) if number % 8 == 0 else rng.choice(metadata)
        yield int(place), int(rng.choice([0xFF, 0x01, 0x80, 0x10]))


def read_everything(path: Path, expected: dict[str, SampleBlock]) -> str:
    """Return "refused" or "read"; raise if it is neither in order."""
    try:
        with open_dataset(path) as file:
            for split, samples in expected.items():
                found = file.read_split(split)
                for field in fields(SampleBlock):
                    assert np.array_equal(getattr(found, field.name), getattr(samples, field.name)), field.name
                file.read_pool(split)
            file.verify_digest()
            rows = file.read_rows("train", [1099, 0])
            assert np.array_equal(rows["images"], expected["train"].images[[1099, 0]])
        outcome = "read"
    except DataError as error:
        assert "\n" not in str(error), error
        outcome = "refused"
    faults = inspect_dataset(path).faults
    assert bool(faults) == (outcome == "refused"), faults
    return outcome


def write_original(folder: Path) -> Path:
    spec = make_tiny_spec(num_train=1100)
    return write_dataset(folder / "whole.h5", spec, make_source(num_train=60, num_test=30)).path


def flip_and_read(folder: Path) -> None:
    """What the child process does: for each flip, say which before HDF5 is given the file."""
    whole = write_original(folder)
    with open_dataset(whole) as file:
        expected = {split: file.read_split(split) for split in ("train", "valid", "test")}
    content = whole.read_bytes()
    for place, mask in choose_flips(whole):
        print(f"byte {place} ^ {mask:#x}:", end=" ", flush=True)
        flipped = bytearray(content)
        flipped[place] ^= mask
        (folder / "flipped.h5").write_bytes(flipped)
        print(read_everything(folder / "flipped.h5", expected), flush=True)


def test_a_flipped_byte_gives_a_clean_error_or_the_same_values(tmp_path: Path) -> None:
    # In a process of its own: were HDF5 to crash, the last line of its output would name the byte.
    script = f"from pathlib import Path; from {__name__} import flip_and_read; flip_and_read(Path({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (lines[-1:], done.stderr)
    assert len(lines) == NUM_FLIPS
    outcomes = [line.rpartition(" ")[2] for line in lines]
    assert set(outcomes) == {"read", "refused"}
    assert outcomes.count("refused") > NUM_FLIPS / 2


def test_a_flipped_byte_in_a_file_that_refers_to_parts_is_a_fault_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What virtual datasets refer to lies in a heap without checksums, where HDF5 can crash or run for ever.
    spec, source = make_tiny_spec(num_train=1100), make_source(num_train=60, num_test=30)
    parts = [write_dataset(tmp_path / f"{n}.h5", spec, source, shard=Shard(n, 2)).path for n in (1, 2)]
    whole = merge_parts(parts, tmp_path / "whole.h5").path
    content = whole.read_bytes()
    heap = content.index(b"GCOL")
    monkeypatch.setattr(mappings, "_LIMIT_S", 4.0)
    places = [heap, heap + 9, heap + 16, heap + 24, *np.random.default_rng(3).integers(heap, heap + 4096, 6).tolist()]
    with open_dataset(whole) as file:
        expected = file.read_split("train").images
    num_faulty = 0
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 0x81
        (tmp_path / "flipped.h5").write_bytes(flipped)
        faults = inspect_dataset(tmp_path / "flipped.h5").faults
        assert all("\n" not in fault for fault in faults)
        num_faulty += bool(faults)
        with open_dataset(tmp_path / "flipped.h5") as file:  # the samples are in the parts
            assert np.array_equal(file.read_split("train").images, expected)
    assert num_faulty >= 3


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(share: float, tmp_path: Path) -> None:
    whole = write_original(tmp_path)
    cut = tmp_path / "cut.h5"
    cut.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    with pytest.raises(DataError, match=r"cut\.h5: cut off, an incomplete copy or download"):
        open_dataset(cut)
    assert [fault.partition(",")[0] for fault in inspect_dataset(cut).faults] == ["cut off"]
