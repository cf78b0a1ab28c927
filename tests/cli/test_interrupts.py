"""Ctrl-C and SIGTERM at every stage: state saved, exit code 130, and going on equals never having stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import data_gen.sources
import data_gen.store.write
import overlaycaps.train.loop
import overlaycaps.train.state
import overlaycaps.train.step
from tests.cli.conftest import Cli, Outcome, read_tree, run_to_end
from tests.data_gen.sources import make_source

# 96 training images: three epochs of three steps, the last epoch cut to two; validation after each, then the test.
OPTIONS = ("--images", "256", "--batch-size", "32", "--name", "run")
TRAIN = ("train", "--size", "tiny", "--cpu", *OPTIONS)
STEP, SCORING, WRITING = (
    (overlaycaps.train.step, "binary_cross_entropy_with_logits"),
    (overlaycaps.train.loop, "evaluate"),
    (overlaycaps.train.state, "save_checkpoint"),
)


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Give a function that has signals sent to this process at the n-th call of something."""

    def fail(number: int, _frame: object) -> None:
        raise AssertionError(f"nobody heeds {signal.Signals(number).name}: it would end the process")

    def plan(place: tuple[Any, str], call: int, *numbers: signal.Signals) -> None:
        original = getattr(*place)
        count = 0

        def interrupted(*arguments: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == call:
                for number in numbers:
                    signal.raise_signal(number)
            return original(*arguments, **more)

        monkeypatch.setattr(*place, interrupted)

    previous = signal.signal(signal.SIGTERM, fail)
    yield plan
    signal.signal(signal.SIGTERM, previous)


@pytest.fixture(scope="module")
def whole(small_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nobody stopped; tests must not change it."""
    runs = tmp_path_factory.mktemp("whole")
    run_to_end(*OPTIONS, "--data", small_data, "--runs", runs)
    return runs / "run"


def read_outcome(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what must not depend on interruptions: scores, and the evaluations without their times."""
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["train_time_s"]
    return {part: result[part] for part in ("test", "validation", "model")}, lines


def resume(cli: Cli, folder: Path) -> Outcome:
    outcome = cli("train", "--resume", folder, "--cpu")
    assert outcome.exit_code == 0, outcome.stderr
    return outcome


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("number", "place", "call", "images_seen"),
    [
        (signal.SIGINT, STEP, 2, 64),
        (signal.SIGTERM, STEP, 2, 64),
        (signal.SIGINT, STEP, 6, 192),
        (signal.SIGINT, STEP, 8, 256),
        (signal.SIGTERM, SCORING, 1, 96),
        (signal.SIGINT, SCORING, 3, 256),
        (signal.SIGINT, WRITING, 1, 96),
    ],
    ids=["in-epoch", "in-epoch-SIGTERM", "end-of-epoch", "last-step", "scoring-SIGTERM", "last-scoring", "writing"],
)
def test_a_stopped_run_is_saved_and_goes_on(
    number: signal.Signals,
    place: tuple[Any, str],
    call: int,
    images_seen: int,
    whole: Path,
    cli: Cli,
    signal_at: Callable[..., None],
) -> None:
    signal_at(place, call, number)
    stopped = cli(*TRAIN)
    assert stopped.exit_code == 130
    assert stopped.stdout == ""
    assert f"stopped after {images_seen} of 256 images; the state is saved" in stopped.error
    assert "`overlaycaps train --resume runs/run`" in stopped.error
    names = set(read_tree(Path("runs/run")))
    assert {"config.json", "last.pt"} <= names <= {"config.json", "last.pt", "previous.pt", "best.pt", "metrics.jsonl"}
    resume(cli, Path("runs/run"))
    assert read_outcome(Path("runs/run")) == read_outcome(whole)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("place", "call"), [(STEP, 5), (SCORING, 2), (SCORING, 3), (SCORING, 4)], ids=["step", "scoring", "last", "test"]
)
def test_a_second_signal_waits_for_nothing(
    place: tuple[Any, str], call: int, whole: Path, cli: Cli, signal_at: Callable[..., None]
) -> None:
    signal_at(place, call, signal.SIGINT, signal.SIGINT)
    stopped = cli(*TRAIN)
    assert stopped.exit_code == 130
    assert "what was done since the last saved state is lost" in stopped.error
    assert "`overlaycaps train --resume runs/run`" in stopped.error
    resume(cli, Path("runs/run"))
    assert read_outcome(Path("runs/run")) == read_outcome(whole)


@pytest.mark.usefixtures("desk")
def test_a_second_signal_before_any_state_leaves_a_run_that_force_begins_again(
    cli: Cli, signal_at: Callable[..., None]
) -> None:
    signal_at(STEP, 1, signal.SIGINT, signal.SIGINT)
    stopped = cli(*TRAIN)
    assert stopped.exit_code == 130
    assert "interrupted" in stopped.error
    assert list(read_tree(Path("runs/run"))) == ["config.json"]
    assert "--force" in cli(*TRAIN).error
    assert cli(*TRAIN, "--force").exit_code == 0


@pytest.mark.usefixtures("desk")
def test_signals_are_as_before_when_a_command_ends(cli: Cli) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert cli(*TRAIN).exit_code == 0
    assert cli("compare", "--json").exit_code == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_file_is_written_leaves_no_half_of_it(
    number: signal.Signals, cli: Cli, signal_at: Callable[..., None]
) -> None:
    assert cli(*TRAIN).exit_code == 0
    before = read_tree(Path())
    signal_at((os, "fsync"), 2, number)
    stopped = cli("compare")
    assert stopped.exit_code == 130
    assert "interrupted" in stopped.error
    # The first of the two files was complete; of the second there is nothing.
    assert set(read_tree(Path())) - set(before) == {"report.md"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("numbers", [1, 2], ids=["once", "twice"])
def test_a_stopped_generation_leaves_nothing(
    number: signal.Signals,
    numbers: int,
    desk: Path,
    cli: Cli,
    signal_at: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data_gen.sources, "load_bundled", lambda: make_source(digit_px=28))
    before = read_tree(desk)
    # A signal in the middle of the second block; twice means that the user does not wait for its end.
    signal_at((data_gen.store.write, "synthesize"), 2, *[number] * numbers)
    stopped = cli("generate", "--out", "new.h5", "--train", "4000", "--valid", "20", "--test", "20")
    assert stopped.exit_code == 130
    assert stopped.stdout == ""
    assert "interrupted" in stopped.error
    assert read_tree(desk) == before


def test_a_stopped_generation_keeps_the_file_that_it_was_to_replace(
    desk: Path, cli: Cli, signal_at: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_gen.sources, "load_bundled", lambda: make_source(digit_px=28))
    before = read_tree(desk)
    signal_at((data_gen.store.write, "synthesize"), 1, signal.SIGINT)
    stopped = cli("generate", "--force", "--train", "4000", "--valid", "20", "--test", "20")
    assert stopped.exit_code == 130
    assert "data.h5 was not written" in stopped.error
    assert read_tree(desk) == before
