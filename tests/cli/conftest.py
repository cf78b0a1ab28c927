"""The command line as a user meets it: typed in some folder, seen on two streams, ended by an exit code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from data_gen.spec import make_spec
from data_gen.store.write import write_dataset
from overlaycaps.cli import app
from tests.data_gen.sources import make_source

# Rich takes these as orders to write colours even into files.
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR", "COLUMNS")


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """The one line that says what is wrong."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.stderr
        return lines[0]


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that gives a command, in this process; an error that nobody explains passes through."""
    for name in _FORCING:
        monkeypatch.delenv(name, raising=False)

    def give(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            typer.main.get_command(app).main([str(argument) for argument in arguments], prog_name="overlaycaps")
        stdout, stderr = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Outcome(end.value.code, stdout, stderr)

    return give


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder, to tell whether something changed; folders have no content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data file of 96 training, 40 validation and 48 test samples and half a MiB; tests must not change it."""
    path = tmp_path_factory.mktemp("data") / "data.h5"
    write_dataset(path, make_spec(num_train=96, num_valid=40, num_test=48), make_source(digit_px=28))
    return path


@pytest.fixture
def desk(small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, which holds ``data.h5`` and nothing else."""
    shutil.copy(small_data, tmp_path / "data.h5")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained_runs(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished runs ``capsules`` and ``baseline``; tests must not change it."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    for model, name in (("caps", "capsules"), ("cnn", "baseline")):
        run_to_end("--model", model, "--data", small_data, "--images", 150, "--runs", runs, "--name", name)
    return runs


def run_to_end(*options: object) -> None:
    """Train at tiny size where no test is running yet."""
    words = ["train", "--size", "tiny", "--cpu", *(str(option) for option in options)]
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(app).main(words, prog_name="overlaycaps")
    assert end.value.code == 0
