from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from data_gen.errors import DataError
from data_gen.store.replace import check_apart, check_folder_target, replacing_folder


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check_former(folder: Path) -> None:
    """Let folders go that hold nothing but files called old."""
    if list_names(folder) != ["old"]:
        raise DataError(f"{folder} holds something else")


def write(path: Path, *, force: bool = False, needed_bytes: int = 0) -> None:
    with replacing_folder(path, needed_bytes, force=force, check_former=check_former) as temporary:
        assert list_names(temporary) == []
        (temporary / "new").write_text("new")


def make_old(path: Path) -> Path:
    path.mkdir()
    (path / "old").write_text("old")
    return path


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing_folder(path, 0, force=False, check_former=check_former) as temporary:
        assert not path.exists()
        (temporary / "new").write_text("new")
    assert list_names(tmp_path) == ["a"]
    assert list_names(path) == ["new"]


def test_a_former_folder_needs_force(tmp_path: Path) -> None:
    path = make_old(tmp_path / "a")
    with pytest.raises(DataError) as caught:
        write(path)
    assert str(caught.value) == f"{path} exists; pass --force to replace it, or choose another name"
    assert list_names(path) == ["old"]
    write(path, force=True)
    assert list_names(path) == ["new"]
    assert list_names(tmp_path) == ["a"]


@pytest.mark.parametrize("force", [False, True])
def test_what_may_not_be_lost_is_kept(force: bool, tmp_path: Path) -> None:
    path = make_old(tmp_path / "a")
    (path / "mine").write_text("mine")
    with pytest.raises(DataError, match="holds something else"):
        write(path, force=force)
    assert list_names(path) == ["mine", "old"]
    assert list_names(tmp_path) == ["a"]


def test_what_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = make_old(tmp_path / "a")
    with (
        pytest.raises(DataError, match="holds something else"),
        replacing_folder(path, 0, force=True, check_former=check_former),
    ):
        (path / "mine").write_text("mine")
    assert list_names(path) == ["mine", "old"]
    with (
        pytest.raises(DataError, match="exists; pass --force"),
        replacing_folder(tmp_path / "b", 0, force=False, check_former=check_former),
    ):
        make_old(tmp_path / "b")
    assert list_names(tmp_path / "b") == ["old"]
    assert list_names(tmp_path) == ["a", "b"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a")
    assert list_names(tmp_path / "a") == ["new"]
    assert list_names(tmp_path) == ["a"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError, OSError])
@pytest.mark.parametrize("had_one", [False, True])
def test_after_any_exception_all_is_as_it_was(had_one: bool, kind: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a"
    if had_one:
        make_old(path)
    with (
        pytest.raises((KeyboardInterrupt, ValueError)),  # DataError is a ValueError
        replacing_folder(path, 0, force=True, check_former=check_former) as temporary,
    ):
        (temporary / "new").write_text("new")
        raise kind
    assert list_names(tmp_path) == ["a"] * had_one
    assert not had_one or list_names(path) == ["old"]


def test_a_former_folder_comes_back_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_old(tmp_path / "a")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EIO, "no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(DataError, match="a cannot be written: Input/output error"):
        write(path, force=True)
    assert list_names(path) == ["old"]
    assert list_names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "quota is used up"), (errno.EIO, "Input/output error")],
)
def test_a_failing_disk_is_told(code: int, reason: str, tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match=f"a cannot be written: .*{reason}; .*"),
        replacing_folder(tmp_path / "a", 0, force=False, check_former=check_former),
    ):
        raise OSError(code, "no")
    assert list_names(tmp_path) == []


def test_too_little_space_is_told_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage(2**40, 2**40, 3 * 2**20))
    with pytest.raises(DataError, match="a needs 4 MiB, but the disk has 3 MiB free"):
        write(tmp_path / "a", needed_bytes=2**22)
    assert list_names(tmp_path) == []


def test_unusable_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "x" / "y").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "x" / "y")
    for path, reason in [
        (tmp_path / "file", "is not a folder; choose another name"),
        (tmp_path / "no" / "a", f"the folder {tmp_path / 'no'} does not exist; create it first"),
        (tmp_path / ("x" * 300), "File name too long"),
        (Path(), "is the folder you are in, or it is above"),
        (tmp_path / "x", "is the folder you are in, or it is above"),
        (Path("/"), "is the folder you are in, or it is above"),
    ]:
        with pytest.raises(DataError) as caught:
            write(path, force=True)
        assert str(caught.value).startswith(str(path))
        assert reason in str(caught.value)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # permissions do not bind the superuser
    with pytest.raises(DataError, match="no permission to write in"):
        check_folder_target(tmp_path / "a", force=False, check_former=check_former)


def test_a_symbolic_link_is_followed_and_kept(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    make_old(tmp_path / "big" / "real")
    link = tmp_path / "a"
    link.symlink_to(tmp_path / "big" / "real")
    write(link, force=True)
    assert link.is_symlink()
    assert list_names(tmp_path / "big") == ["real"]
    assert list_names(tmp_path / "big" / "real") == ["new"]


def test_left_overs_of_killed_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".a.{ended.pid}.partial", f".a.{'9' * 18}.partial", f".a.{os.getpid()}.partial"):
        (tmp_path / name / "new" / "train").mkdir(parents=True)
        (tmp_path / name / "new" / "train" / "0.png").write_text("left over")
    (tmp_path / ".a.1234567890.partial").write_text("a file may be one as well")
    kept = [f".a.{os.getppid()}.partial", f".b.{ended.pid}.partial", ".a.x.partial", f".axb.{ended.pid}.partial"]
    for name in kept:
        make_old(tmp_path / name)
    mine = make_old(tmp_path / "mine")
    link = tmp_path / ".a.1234567891.partial"
    link.symlink_to(mine)
    write(tmp_path / "a")
    assert sorted(name for name in list_names(tmp_path) if name != link.name) == sorted([*kept, "a", "mine"])
    assert list_names(mine) == ["old"]


def test_a_killed_process_leaves_what_the_next_one_removes(tmp_path: Path) -> None:
    script = f"""
from pathlib import Path
from data_gen.store.replace import replacing_folder
with replacing_folder(Path({str(tmp_path / "a")!r}), 0, force=False, check_former=print) as temporary:
    (temporary / "0.png").write_text("half")
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script], check=False)
    assert [name.endswith(".partial") for name in list_names(tmp_path)] == [True]
    write(tmp_path / "a")
    assert list_names(tmp_path) == ["a"]


def test_a_source_is_no_target(tmp_path: Path) -> None:
    source, link = tmp_path / "a", tmp_path / "b"
    source.write_text("mine")
    link.symlink_to(source)
    check_apart(tmp_path / "c", [source, link])
    for path in (source, link, tmp_path / "x" / ".." / "a"):
        with pytest.raises(DataError, match="is a data file that is read for this; choose another name"):
            check_apart(path, [tmp_path / "c", source])
