"""One process at a time trains into a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overlaycaps.errors import UserError
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import ResumeRequest, prepare_resumed_run, prepare_run
from overlaycaps.train.run_lock import RunInUseError, is_run_locked
from overlaycaps.train.session import carry_out
from tests.train.runs import ROOT, Listener, begin, go_on
from tests.train.test_loop import make_request

HOLDER = """
import sys, time
from pathlib import Path
from overlaycaps.train.run_lock import lock_run
with lock_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("way", ["resume", "replace", "new"])
def test_two_processes_cannot_train_into_one_folder(way: str, stopped: Path, tiny_data: Path) -> None:
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    words = [sys.executable, "-c", HOLDER, str(stopped)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert is_run_locked(stopped)
            run = prepare_run(make_request(tiny_data, stopped.parent))
            if way == "resume":
                run = prepare_resumed_run(ResumeRequest(stopped, cpu=True))
            with pytest.raises(RunInUseError, match=rf"run is in use by process {holder.pid} on .*; wait"):
                carry_out(run, SilentObserver(), StopFlag(), way)  # type: ignore[arg-type]
            assert {path.name: path.read_bytes() for path in stopped.iterdir() if path.name in before} == before
        finally:
            holder.kill()
    deadline = time.monotonic() + 10
    while is_run_locked(stopped):
        assert time.monotonic() < deadline
    go_on(stopped)


def test_a_folder_without_locks_is_told(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlaycaps.train.run_lock._try_lock", lambda *_arguments, **_more: "unknown")
    listener = Listener()
    begin(make_request(tiny_data, tmp_path, epochs=1), listener)
    assert len(listener.warnings) == 1
    assert "no locks on this file system" in listener.warnings[0]


def test_a_link_in_place_of_the_lock_leads_nowhere(stopped: Path, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    (stopped / "train.lock").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(UserError, match=r"train\.lock could not be written: a link stands where a file is needed"):
        go_on(stopped)
    assert (tmp_path / "precious.txt").read_text() == "mine"
