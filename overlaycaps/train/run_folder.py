"""The folder of a run: what lies in it, and whether it may be written.

config.json     what the run is: written first
metrics.jsonl   one line per evaluation
last.pt         the state to continue from
best.pt         the weights with the best validation exact match so far
result.json     written last: a run with it is finished
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlaycaps.errors import UserError
from overlaycaps.files import describe_write_failure, write_text_atomically
from overlaycaps.schemas import RUN_SCHEMA, RUN_VERSION


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
    def best_file(self) -> Path:
        """Best weights so far."""
        return self.path / "best.pt"

    @property
    def result_file(self) -> Path:
        """What ``compare`` reads; its presence says that the run is finished."""
        return self.path / "result.json"

    def is_empty(self) -> bool:
        """Whether it is a folder in which there is nothing that could be lost."""
        return self.path.is_dir() and not any(self.path.iterdir())

    def is_finished(self) -> bool:
        """Whether the run ended and was scored."""
        return self.result_file.is_file()

    def can_resume(self) -> bool:
        """Whether there is a state to continue from."""
        return self.last_file.is_file() and not self.is_finished()

    def describe_resume(self) -> str:
        """Return the command that continues the run."""
        return shlex.join(["overlaycaps", "train", "--resume", str(self.path)])

    def create(self, config: dict[str, Any], *, force: bool) -> None:
        """Make the folder and write ``config.json``.

        With ``force`` the files of the run that is there are removed first; other files in the folder stay.

        Raises:
            UserError: if the folder holds a run and ``force`` is off, holds something that is not a run, or cannot be
                written.
        """
        try:
            is_new = not self.path.exists()
            if not is_new and not self.is_empty():
                self._check_ours("choose another --name or --runs")
                if not force:
                    raise UserError(self._describe_obstacle())
                self._clear()
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(describe_write_failure(self.path, error)) from error
        try:
            write_text_atomically(self.config_file, _dump(self._wrap(config)))
        except BaseException:
            if is_new:
                self.path.rmdir()
            raise

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

    def keep_metrics_until(self, images_seen: int) -> None:
        """Drop the lines of evaluations after ``images_seen``, which a resumed run will make again."""
        if not self.metrics_file.is_file():
            return
        lines = self.metrics_file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _images_seen(line) <= images_seen]
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

    def _clear(self) -> None:
        # The result goes first: a run without one is never taken for finished.
        for file in (self.result_file, self.last_file, self.best_file, self.metrics_file, self.config_file):
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(describe_write_failure(file, error)) from error

    @staticmethod
    def _wrap(config: dict[str, Any]) -> dict[str, Any]:
        return {"schema": RUN_SCHEMA, "schema_version": RUN_VERSION, **config}


def _images_seen(line: str) -> float:
    # A line that a crash cut short belongs to no evaluation that can be kept.
    try:
        return int(json.loads(line)["images_seen"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _dump(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _load_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} could not be read ({error}); move its folder away.") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object; it is not a configuration of overlaycaps. Move its folder away.")
    return data
