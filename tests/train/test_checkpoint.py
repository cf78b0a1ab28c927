"""Checkpoints: data only, device-free, never half there."""

from __future__ import annotations

import errno
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.errors import UserError
from overlaycaps.train.checkpoint import load_checkpoint, save_checkpoint

STATE = {"model": {"w": torch.arange(3.0)}, "position": {"step": 7, "note": "x"}, "list": [1, 2.5, torch.ones(2)]}


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c.pt", STATE)
    state = load_checkpoint(tmp_path / "c.pt")
    assert torch.equal(state["model"]["w"], torch.arange(3.0))
    assert state["position"] == {"step": 7, "note": "x"}
    assert state["list"][:2] == [1, 2.5]
    assert state["list"][2].tolist() == [1, 1]


def test_no_device_reaches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []
    cpu = torch.Tensor.cpu

    def note(self: torch.Tensor) -> torch.Tensor:
        moved.append(self)
        return cpu(self)

    monkeypatch.setattr(torch.Tensor, "cpu", note)
    save_checkpoint(tmp_path / "c.pt", STATE)
    assert len(moved) == 2
    assert b"cuda" not in (tmp_path / "c.pt").read_bytes()


def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harm",)

    torch.save({"schema": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(UserError, match=f"{name} is damaged or not a checkpoint"):
            load_checkpoint(tmp_path / name)
    assert not (tmp_path / "harm").exists()


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    with pytest.raises(UserError, match=r"c\.pt does not exist"):
        load_checkpoint(path)
    save_checkpoint(path, STATE)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError, match=r"c\.pt is damaged"):
        load_checkpoint(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"c\.pt is damaged"):
        load_checkpoint(path)
    torch.save({"model": {}}, path)
    with pytest.raises(UserError, match=r"c\.pt is not a checkpoint of overlaycaps"):
        load_checkpoint(path)


def test_a_newer_version_says_to_upgrade(tmp_path: Path) -> None:
    torch.save({"schema": "overlaycaps.checkpoint", "schema_version": 99}, tmp_path / "c.pt")
    with pytest.raises(UserError, match=r"has version 99; this program reads 2\. Upgrade"):
        load_checkpoint(tmp_path / "c.pt")


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.pt"
    save_checkpoint(path, STATE)
    before = path.read_bytes()

    def fill_up(_state: object, file: io.BufferedWriter) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fill_up)
    with pytest.raises(UserError, match=r"c\.pt could not be written: the disk is full"):
        save_checkpoint(path, STATE)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
