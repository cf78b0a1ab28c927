"""Runs at tiny size, begun, stopped and gone on with, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import ResumeRequest, TrainRequest, prepare_resumed_run, prepare_run
from overlaycaps.train.session import carry_out
from tests.train.test_loop import Recorder

ROOT = Path(__file__).parents[2]


class Listener(Recorder):
    """Keeps warnings as well."""

    def __init__(self) -> None:
        super().__init__()
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def begin(request: TrainRequest, observer: Any = None, stop: StopFlag | None = None) -> dict[str, Any]:
    return carry_out(prepare_run(request), observer or SilentObserver(), stop or StopFlag(), "new")


def go_on(path: Path, observer: Any = None, **changes: Any) -> dict[str, Any]:
    run = prepare_resumed_run(ResumeRequest(path, cpu=True, **changes))
    return carry_out(run, observer or SilentObserver(), StopFlag(), "resume")


def read_end(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the last state's weights, the lines of metrics without their times, and the scores."""
    state = load_checkpoint(folder / "last.pt")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["train_time_s"]
    result = json.loads((folder / "result.json").read_text())
    weights = {f"{part}.{name}": tensor for part in ("model", "best_model") for name, tensor in state[part].items()}
    for number, moments in state["optimizer"]["state"].items():
        weights |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    return weights, lines, {part: result[part] for part in ("test", "validation")}


def assert_same_end(one: Path, other: Path) -> None:
    (weights, lines, scores), (weights_2, lines_2, scores_2) = read_end(one), read_end(other)
    assert list(weights) == list(weights_2)
    for name, tensor in weights.items():
        assert torch.equal(tensor, weights_2[name]), name
    assert [line["lr"] for line in lines] == [line["lr"] for line in lines_2]
    assert lines == lines_2
    assert scores == scores_2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # in the middle of a tensor, where nothing but a checksum notices
    path.write_bytes(content)
