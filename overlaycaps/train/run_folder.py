"""The folder of a run: what lies in it, and whether it may be written.

config.json     what the run is: written first
metrics.jsonl   one line per evaluation
last.pt         the state to continue from
previous.pt     the state before it, should last.pt turn out to be damaged
best.pt         the weights with the best validation exact match so far
failure.json    why the run stopped, if it failed; gone when it goes on
result.json     written last: a run with it is finished
train.lock      while a process trains into the folder
tensorboard/    what --tensorboard wrote
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlaycaps.errors import UserError
from overlaycaps.files import describe_write_failure, write_text_atomically
from overlaycaps.schemas import RUN_SCHEMA, RUN_VERSION
from overlaycaps.train.launcher import describe_launcher
from overlaycaps.train.run_lock import LOCK_NAME, lock_run

_MAX_JSON_BYTES = 2**20

# What a process leaves that is killed while it writes one of the run's files, see `write_atomically`.
_LEFTOVER = re.compile(r"\.(config\.json|metrics\.jsonl|last\.pt|best\.pt|result\.json|failure\.json)\.\d+\.partial")


@dataclass(frozen=True)
class RunFolder:
    """A folder that is, or will be, a run's."""

    path: Path

    @property
    def config_file(self) -> Path:
        """What the run is."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line and an evaluation."""
        return self.path / "metrics.jsonl"

    @property
    def last_file(self) -> Path:
        """State to continue from."""
        return self.path / "last.pt"

    @property
    def previous_file(self) -> Path:
        """State before the last."""
        return self.path / "previous.pt"

    @property
    def best_file(self) -> Path:
        """Best weights so far."""
        return self.path / "best.pt"

    @property
    def result_file(self) -> Path:
        """What ``compare`` reads; its presence says that the run is finished."""
        return self.path / "result.json"

    @property
    def failure_file(self) -> Path:
        """Why the run stopped, if it failed."""
        return self.path / "failure.json"

    @property
    def events_folder(self) -> Path:
        """What TensorBoard reads."""
        return self.path / "tensorboard"

    def is_empty(self) -> bool:
        """Whether it is a folder in which there is nothing that could be lost."""
        return self.path.is_dir() and all(map(_is_of_no_worth, self.path.iterdir()))

    def is_finished(self) -> bool:
        """Whether the run ended and was scored."""
        return self.result_file.is_file()

    def can_resume(self) -> bool:
        """Whether there is a state to continue from."""
        return (self.last_file.is_file() or self.previous_file.is_file()) and not self.is_finished()

    def describe_resume(self) -> str:
        """Return the command that continues the run."""
        return shlex.join([*describe_launcher(os.environ), "train", "--resume", str(self.path)])

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep other processes from training into the folder, which is made if need be, while the block runs.

        A folder that was made for it and is still empty at the end is removed again.

        Gives:
            Whether the file system has locks, so that others are kept out.

        Raises:
            RunInUseError: if another process trains into it.
            UserError: if the folder cannot be made.
        """
        is_new = not self.path.exists()
        if is_new:
            self._make()
        if not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder; choose another --name or --runs.")
        try:
            with lock_run(self.path) as is_locked:
                yield is_locked
        finally:
            if is_new:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # fails, as it should, where there is something in it

    def create(self, config: dict[str, Any], *, force: bool) -> None:
        """Make the folder and write ``config.json``.

        With ``force`` the files of the run that is there are removed first; other files in the folder stay.

        Raises:
            UserError: if the folder holds a run and ``force`` is off, holds something that is not a run, or cannot be
                written.
        """
        self.check_free(force=force)
        if self.path.exists() and not self.is_empty():
            self._clear()
        self._make()
        write_text_atomically(self.config_file, _dump(self._wrap(config)))

    def check_free(self, *, force: bool) -> None:
        """Check that a new run may be made in the folder.

        Raises:
            UserError: as :meth:`create`.
        """
        if self.path.exists() and not self.is_empty():
            self._check_ours("choose another --name or --runs")
            if not force:
                raise UserError(self._describe_obstacle())

    def read_config(self) -> dict[str, Any]:
        """Return the configuration that the run was made with.

        Raises:
            UserError: if the folder is not a run's or its ``config.json`` is damaged.
        """
        self._check_ours("give the folder of a run that `overlaycaps train` began")
        config = _load_object(self.config_file)
        version = config.get("schema_version")
        if version != RUN_VERSION:
            raise UserError(
                f"{self.config_file} has version {version}; this program reads {RUN_VERSION}. Upgrade overlaycaps."
            )
        return config

    def remove_leftovers(self) -> None:
        """Remove half-written files that a killed process left; only who holds the folder may do so."""
        for path in list(self.path.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()

    def write_failure(self, message: str) -> None:
        """Note why the run stopped; on a disk that is full, that stays unwritten."""
        with contextlib.suppress(UserError):
            write_text_atomically(self.failure_file, _dump({"message": message}))

    def forget_failure(self) -> None:
        """Remove the note on why the run stopped: it goes on."""
        with contextlib.suppress(OSError):
            self.failure_file.unlink(missing_ok=True)

    def read_failure(self) -> str | None:
        """Return why the run stopped, if it failed."""
        if not self.failure_file.is_file():
            return None
        try:
            return str(_load_object(self.failure_file)["message"])
        except (UserError, KeyError):
            return "it failed; why is no longer known"

    def write_result(self, result: dict[str, Any]) -> None:
        """Write ``result.json``, which finishes the run."""
        write_text_atomically(self.result_file, _dump(result))

    def append_metrics(self, entry: dict[str, Any]) -> None:
        """Add one line to ``metrics.jsonl``."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise UserError(describe_write_failure(self.metrics_file, error)) from error

    def keep_metrics_until(self, epoch: int) -> None:
        """Drop the lines of evaluations after ``epoch`` (counted from 1), which a resumed run will make again."""
        if not self.metrics_file.is_file():
            return
        lines = self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if _read_epoch(line) <= epoch]
        write_text_atomically(self.metrics_file, "".join(line + "\n" for line in kept))

    def _check_ours(self, remedy: str) -> None:
        if not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder; {remedy}.")
        if not self.config_file.is_file() or _load_object(self.config_file).get("schema") != RUN_SCHEMA:
            raise UserError(f"{self.path} is not a run folder of overlaycaps and is left as it is; {remedy}.")

    def _describe_obstacle(self) -> str:
        if self.is_finished():
            return f"{self.path} holds a finished run; pass --force to replace it, or --name to keep both."
        if self.can_resume():
            return (
                f"{self.path} holds an unfinished run; continue it with `{self.describe_resume()}`, "
                "or pass --force to start over."
            )
        return f"{self.path} exists; pass --force to use it, or choose another --name."

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(describe_write_failure(self.path, error)) from error

    def _clear(self) -> None:
        # The result goes first: a run without one is never taken for finished.
        files = (self.result_file, self.last_file, self.previous_file, self.best_file, self.failure_file)
        events = sorted(self.events_folder.glob("events.out.tfevents.*"))  # others' files stay
        for file in (*files, self.metrics_file, *events, self.config_file):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(describe_write_failure(file, error)) from error

    @staticmethod
    def _wrap(config: dict[str, Any]) -> dict[str, Any]:
        return {"schema": RUN_SCHEMA, "schema_version": RUN_VERSION, **config}


def _is_of_no_worth(path: Path) -> bool:
    return path.name == LOCK_NAME or _LEFTOVER.fullmatch(path.name) is not None


def _read_epoch(line: str) -> float:
    # A line that a crash cut short belongs to no evaluation that can be kept.
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _load_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError("it is too large")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} could not be read ({error}); move its folder away.") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object; it is not a configuration of overlaycaps. Move its folder away.")
    return data
