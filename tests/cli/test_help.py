"""Help and completion: they name everything there is, and cost no import of torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from data_gen.merging import MERGES
from data_gen.protocols import PROTOCOLS
from overlaycaps import __version__
from overlaycaps.cli import app
from overlaycaps.config import PRECISIONS, SIZES
from overlaycaps.models import MODELS
from overlaycaps.routing import ROUTINGS, SCHEDULES
from tests.cli.conftest import Cli

COMMANDS = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
HEAVY = ("torch", "numpy", "h5py", "PIL")

# Everything in one process, as each costs a start of Python; SystemExit is how a command ends.
SCRIPT = f"""
import contextlib, io, json, os, sys
import typer
from overlaycaps.cli import app

command = typer.main.get_command(app)
ends = {{}}
for words in [["--help"], ["--version"], *([name, "--help"] for name in command.commands)]:
    with contextlib.redirect_stdout(io.StringIO()) as stdout:
        try:
            command.main(words, prog_name="overlaycaps")
        except SystemExit as end:
            ends[" ".join(words)] = [end.code, stdout.getvalue()]
os.environ.update(_OVERLAYCAPS_COMPLETE="complete_bash", COMP_WORDS="overlaycaps tr", COMP_CWORD="1")
with contextlib.redirect_stdout(io.StringIO()) as stdout:
    try:
        command.main([], prog_name="overlaycaps")
    except SystemExit as end:
        ends["completion"] = [end.code, stdout.getvalue()]
json.dump([ends, [name for name in {HEAVY} if name in sys.modules]], sys.stdout)
"""


def test_help_and_completion_import_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    ends, imported = json.loads(done.stdout)
    assert imported == []
    assert set(ends) == {"--help", "--version", "completion", *(f"{name} --help" for name in COMMANDS)}
    for words, (exit_code, stdout) in ends.items():
        assert exit_code == 0, words
        assert stdout, words
    assert ends["completion"][1].strip() == "train"


def test_the_commands_are_known() -> None:
    assert {"generate", "train", "compare", "reproduce", "models"} <= set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("train", MODELS),
        ("train", ROUTINGS),
        ("train", SCHEDULES),
        ("train", SIZES),
        ("train", PRECISIONS),
        ("reproduce", SIZES),
        ("models", SIZES),
        ("generate", MERGES),
        ("generate", PROTOCOLS),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_help_lists_every_name(command: str, names: object, cli: Cli) -> None:
    # Typer breaks lines inside of names with hyphens.
    text = "".join(cli(command, "--help").stdout.split())
    for name in names:  # type: ignore[attr-defined]
        assert name in text


def test_help_lists_whole_sentences(cli: Cli) -> None:
    listing = cli("--help").stdout.partition("Commands:")[2].splitlines()
    assert len([line for line in listing if line.strip()]) == len(COMMANDS)
    for line in listing[1:]:
        assert line.endswith("."), line
        assert not line.endswith("..."), line


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str) -> None:
    for option in typer.main.get_command(app).commands[command].params:  # type: ignore[attr-defined]
        assert option.help, option.name


def test_the_version_is_printed(cli: Cli) -> None:
    outcome = cli("--version")
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (0, f"overlaycaps {__version__}\n", "")


def test_no_command_shows_the_help(cli: Cli) -> None:
    outcome = cli()
    assert outcome.exit_code in (0, 2)  # before Click 8.2, 0
    assert "train" in outcome.stdout + outcome.stderr
