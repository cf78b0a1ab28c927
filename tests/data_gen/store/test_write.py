from __future__ import annotations

import errno
import hashlib
import os
import resource
import socket
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from data_gen.digits import DigitSource, split_digits
from data_gen.errors import DataError
from data_gen.sharding import Shard
from data_gen.sources import load_bundled
from data_gen.spec import make_spec
from data_gen.store.format import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, choose_chunks
from data_gen.store.read import open_dataset
from data_gen.store.write import write_dataset
from data_gen.synthesis import synthesize
from tests.data_gen.sources import make_source, make_tiny_spec

GOLDEN_CONTENT = "6d6666528788c6562487dacee2960d914ba941bfe43563f576df2649bab577a3"
GOLDEN_IMAGES = "b2e76a0c8bf22455db65706c79f3949ae28dc1ad53f537921d2f35f8308c33e5"
GOLDEN_FILE = "3817ed50d5596ef5d19a9e1a4c5818de700fbe83f7ae6cf56df2676caec33ba3"


def _list(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def test_the_file_holds_what_synthesis_and_split_give(tiny: DigitSource, tmp_path: Path) -> None:
    spec = make_tiny_spec(num_train=2500)
    info = write_dataset(tmp_path / "d.h5", spec, tiny)
    pools = split_digits(tiny, spec.seed)
    assert _list(tmp_path) == ["d.h5"]
    with h5py.File(tmp_path / "d.h5") as file:
        for split, pool in pools.items():
            samples = synthesize(spec, pool, split, 0, spec.num_samples(split))
            for name in ("images", "labels", "digits", "source_index", "offset_px", "overlap"):
                assert np.array_equal(file[split][name][:], getattr(samples, name))
            for name in ("images", "labels", "source_row"):
                assert np.array_equal(file[f"digits/{split}"][name][:], getattr(pool, name))
        texts = {name: value.decode() for name, value in file.attrs.items() if name != "format_version"}
        assert {**texts, "format_version": file.attrs["format_version"]} == {
            "format": "overlaycaps.overlay",
            "format_version": 2,
            "spec": spec.to_json(),
            "digit_source": "tiny",
            "digit_source_digest": tiny.digest,
            "shard": "1/1",
            "content_digest": info.content_digest,
        }
    assert info.size_bytes == (tmp_path / "d.h5").stat().st_size


def test_the_same_spec_gives_the_same_bytes_whatever_the_workers(mnist: DigitSource, tmp_path: Path) -> None:
    spec = make_spec(num_train=5000, num_valid=1500, num_test=40, overlap=(0.1, 0.5))
    first = write_dataset(tmp_path / "first.h5", spec, mnist)
    for num_workers in (1, 2, 4):
        again = write_dataset(tmp_path / "again.h5", spec, mnist, num_workers=num_workers, force=True)
        assert (tmp_path / "again.h5").read_bytes() == (tmp_path / "first.h5").read_bytes()
        assert again.content_digest == first.content_digest
    other = write_dataset(tmp_path / "other.h5", replace(spec, seed=1), mnist)
    assert other.content_digest != first.content_digest


def test_nothing_in_the_file_depends_on_the_time(tiny: DigitSource, tmp_path: Path) -> None:
    write_dataset(tmp_path / "now.h5", make_tiny_spec(), tiny)
    time.sleep(1.1)  # HDF5 counts whole seconds, in C, where no test can turn the clock
    write_dataset(tmp_path / "later.h5", make_tiny_spec(), tiny)
    assert (tmp_path / "now.h5").read_bytes() == (tmp_path / "later.h5").read_bytes()


def test_bundled_digits_give_the_samples_they_always_gave(mnist: DigitSource, tmp_path: Path) -> None:
    # A change here means that everybody's datasets change: raise the format version and say so.
    info = write_dataset(tmp_path / "d.h5", make_spec(num_train=2000, num_valid=100, num_test=200), mnist)
    assert info.content_digest == GOLDEN_CONTENT
    with h5py.File(info.path) as file:
        # What version 1 of the format gave for the same options.
        first = hashlib.sha256(file["train/images"][:].tobytes()).hexdigest()
    assert first == GOLDEN_IMAGES


def test_a_small_file_has_the_bytes_it_always_had(tiny: DigitSource, tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "d.h5", make_tiny_spec(max_digits=3), tiny).path
    if h5py.version.hdf5_version_tuple[:2] != (2, 0):
        pytest.skip(f"the digest is of a file by HDF5 2.0, and this is {h5py.version.hdf5_version}")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == GOLDEN_FILE


def test_shards_hold_the_slices_of_the_whole(tiny: DigitSource, tmp_path: Path) -> None:
    spec = make_tiny_spec(num_train=5000)
    pools = split_digits(tiny, spec.seed)
    for number in (1, 2, 3):
        shard = Shard(number, 3)
        info = write_dataset(tmp_path / "p.h5", spec, tiny, shard=shard, force=True)
        assert info.shard == shard
        with open_dataset(info.path) as file:
            for split, pool in pools.items():
                start, stop = shard.cut(spec.num_samples(split))
                assert (file.first(split), file.num(split)) == (start, stop - start)
                expected = synthesize(spec, pool, split, start, stop)
                assert np.array_equal(file.read_split(split).images, expected.images)


def test_a_shard_that_is_there_is_kept_and_another_file_is_not_taken_for_it(tiny: DigitSource, tmp_path: Path) -> None:
    path, spec, shard = tmp_path / "p.h5", make_tiny_spec(num_train=3000), Shard(1, 2)
    assert not write_dataset(path, spec, tiny, shard=shard).was_there
    before = path.read_bytes()
    again = write_dataset(path, spec, tiny, shard=shard)
    assert again.was_there
    assert again.size_bytes == len(before)
    for changes in ({"shard": Shard(2, 2)}, {"spec": replace(spec, seed=2)}, {"source": make_source(num_test=70)}):
        wanted: dict[str, Any] = {"spec": spec, "source": tiny, "shard": shard, **changes}
        with pytest.raises(
            DataError, match=r"p\.h5 exists and is another dataset, or another shard than .*pass --force"
        ):
            write_dataset(path, **wanted)
        assert path.read_bytes() == before
    assert write_dataset(path, spec, tiny, shard=Shard(2, 2), force=True).shard == Shard(2, 2)
    path.write_text("mine")
    with pytest.raises(DataError, match=r"exists and is no shard of this dataset \(.*not an HDF5 file.*pass --force"):
        write_dataset(path, spec, tiny, shard=shard)
    assert path.read_text() == "mine"


def test_a_source_of_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the spec names 10 classes, and not those of tiny"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), make_source(class_names=("a", "b", "c")))


def test_no_network_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    write_dataset(tmp_path / "d.h5", make_spec(num_train=10, num_valid=10, num_test=10), load_bundled())
    assert (tmp_path / "d.h5").stat().st_size > 0


def test_chunks_are_within_bounds(mnist: DigitSource, tmp_path: Path) -> None:
    write_dataset(tmp_path / "d.h5", make_spec(num_train=3000, num_valid=20, num_test=300), mnist)
    num_chunked = 0
    with h5py.File(tmp_path / "d.h5") as file:
        datasets: list[Any] = []
        file.visititems(lambda name, node: datasets.append(node) if isinstance(node, h5py.Dataset) else None)
        assert len(datasets) == 30
        for dataset in datasets:
            name = dataset.name
            if dataset.chunks is None:
                assert dataset.nbytes < MIN_CHUNK_BYTES, name
            else:
                num_chunked += 1
                chunk_bytes = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
                assert MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES, name
    assert num_chunked > 10


@pytest.mark.parametrize("side", [1, 28, 36, 101, 102, 103, 181, 182, 255, 256])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 50, 10_240, 10**8])
def test_chunks_of_every_shape_are_within_bounds(side: int, num_rows: int) -> None:
    chunks = choose_chunks(num_rows, side * side, (side, side))
    if chunks is None:
        assert num_rows * side * side < MIN_CHUNK_BYTES
    else:
        assert MIN_CHUNK_BYTES <= np.prod(chunks) <= MAX_CHUNK_BYTES
        assert chunks[0] <= num_rows


def test_progress_counts_every_block(tiny: DigitSource, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    write_dataset(tmp_path / "d.h5", make_tiny_spec(num_train=2100), tiny, progress=lambda *call: calls.append(call))
    assert calls == [
        ("train", 1024, 2100),
        ("train", 2048, 2100),
        ("train", 2100, 2100),
        ("valid", 10, 10),
        ("test", 20, 20),
    ]


def test_an_existing_file_is_kept_without_force(tiny: DigitSource, tmp_path: Path) -> None:
    path = tmp_path / "d.h5"
    path.write_text("mine")
    with pytest.raises(DataError) as caught:
        write_dataset(path, make_tiny_spec(), tiny)
    assert str(caught.value) == f"{path} exists; pass --force to replace it, or choose another name"
    assert path.read_text() == "mine"
    write_dataset(path, make_tiny_spec(), tiny, force=True)
    with open_dataset(path) as file:
        assert file.spec == make_tiny_spec()


def test_a_file_that_appears_meanwhile_is_kept(tiny: DigitSource, tmp_path: Path) -> None:
    path = tmp_path / "d.h5"

    def appear(split: str, done: int, total: int) -> None:
        path.write_text("theirs")

    with pytest.raises(DataError, match="exists; pass --force"):
        write_dataset(path, make_tiny_spec(), tiny, progress=appear)
    assert path.read_text() == "theirs"
    assert _list(tmp_path) == ["d.h5"]


def test_unusable_paths_are_refused(tiny: DigitSource, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in [
        (tmp_path, "is a folder; give a file name"),
        (tmp_path / "no" / "d.h5", f"the folder {tmp_path / 'no'} does not exist; create it first"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / ("x" * 300), "File name too long"),
    ]:
        with pytest.raises(DataError) as caught:
            write_dataset(path, make_tiny_spec(), tiny, force=True)
        assert str(caught.value).startswith(str(path))
        assert reason in str(caught.value)


def test_a_folder_without_permission_is_refused(
    tiny: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # permissions do not bind the superuser
    with pytest.raises(DataError, match="no permission to write in"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny)


def test_a_symbolic_link_is_followed_and_kept(tiny: DigitSource, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    link = tmp_path / "d.h5"
    link.symlink_to(tmp_path / "big" / "real.h5")
    write_dataset(link, make_tiny_spec(), tiny)
    assert link.is_symlink()
    assert (tmp_path / "big" / "real.h5").is_file()


def test_an_interrupt_leaves_everything_as_it_was(tiny: DigitSource, tmp_path: Path) -> None:
    def interrupt(split: str, done: int, total: int) -> None:
        assert any(name.endswith(".partial") for name in _list(tmp_path))
        if split == "valid":
            raise KeyboardInterrupt

    path = tmp_path / "d.h5"
    with pytest.raises(KeyboardInterrupt):
        write_dataset(path, make_tiny_spec(), tiny, progress=interrupt)
    assert _list(tmp_path) == []
    path.write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        write_dataset(path, make_tiny_spec(), tiny, force=True, progress=interrupt)
    assert _list(tmp_path) == ["d.h5"]
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota is used up"), (errno.EIO, "Input/output error")],
)
def test_a_failing_disk_is_told_and_nothing_is_left(
    code: int, reason: str, tiny: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(dataset: h5py.Dataset, where: object, values: object) -> None:
        raise OSError(code, "Can't write data")

    monkeypatch.setattr(h5py.Dataset, "__setitem__", fail)
    with pytest.raises(DataError, match=f"d.h5 cannot be written: .*{reason}; .*"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny)
    assert _list(tmp_path) == []


def test_too_little_space_is_told_beforehand(
    tiny: DigitSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(2**40, 2**40, 3 * 2**20))
    with pytest.raises(DataError, match=r"d\.h5 needs 4 MiB, but the disk has 3 MiB free; free some space"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny)
    assert _list(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve space")
def test_a_real_write_failure_ends_the_process_in_order(tmp_path: Path) -> None:
    # HDF5 crashes at exit once a write has failed; a limit on the file size makes writes fail for real.
    script = f"""
        from data_gen.errors import DataError
        from data_gen.store.write import write_dataset
        from tests.data_gen.sources import make_source, make_tiny_spec
        try:
            write_dataset({str(tmp_path / "d.h5")!r}, make_tiny_spec(num_train=9000), make_source())
        except DataError as error:
            print(error)
    """
    limit = 500_000
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "d.h5 cannot be written: files may not be that large here" in done.stdout
    assert _list(tmp_path) == []


def test_left_overs_of_killed_processes_are_removed(tiny: DigitSource, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".d.h5.{ended.pid}.partial", f".d.h5.{'9' * 18}.partial", f".d.h5.{os.getpid()}.partial"):
        (tmp_path / name).write_text("left over")
    kept = [
        f".d.h5.{os.getppid()}.partial",
        f".e.h5.{ended.pid}.partial",
        ".d.h5.x.partial",
        f".dxh5.{ended.pid}.partial",
    ]
    for name in kept:
        (tmp_path / name).write_text("alive, or somebody else's")
    write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny)
    assert sorted(_list(tmp_path)) == sorted([*kept, "d.h5"])


def test_a_shard_that_is_kept_is_freed_of_left_overs_too(tiny: DigitSource, tmp_path: Path) -> None:
    for _ in range(2):
        info = write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny, shard=Shard(1, 2))
        assert _list(tmp_path) == ["d.h5"]
        (tmp_path / f".d.h5.{'9' * 18}.partial").write_text("of a job that was given twice, and killed")
    assert info.was_there


def test_the_slower_of_two_that_write_one_shard_keeps_what_is_there(tiny: DigitSource, tmp_path: Path) -> None:
    def overtake(split: str, done: int, total: int) -> None:
        other = write_dataset(tmp_path / "other.h5", make_tiny_spec(seed=seed), tiny, shard=Shard(2, 2))
        other.path.rename(tmp_path / "d.h5")

    seed = 0
    info = write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny, shard=Shard(2, 2), progress=overtake)
    assert info.was_there
    assert _list(tmp_path) == ["d.h5"]
    (tmp_path / "d.h5").unlink()
    seed = 1
    with pytest.raises(DataError, match=r"d\.h5 exists and is another dataset"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny, shard=Shard(2, 2), progress=overtake)


def test_a_partial_file_that_is_still_locked_is_kept(tiny: DigitSource, tmp_path: Path) -> None:
    # On a shared disk its writer may run on another machine, where its process number means nothing here.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    partial = tmp_path / f".d.h5.{ended.pid}.partial"
    with h5py.File(partial, "w"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), tiny)
        assert partial.exists()


def test_digits_of_another_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the train digits have 5x5 px, but the spec is for digits of 6 px"):
        write_dataset(tmp_path / "d.h5", make_tiny_spec(), make_source(digit_px=5))
