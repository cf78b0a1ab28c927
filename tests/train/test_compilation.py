"""``--compile``: the same run where it works, a warning and the plain run where it does not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from overlaycaps.models import build_model
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.observer import SilentObserver
from tests.train.test_loop import make_request, start


class WarningRecorder(SilentObserver):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def run_compiled(
    data: Path, runs: Path, compiler: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[str]]:
    monkeypatch.setattr(torch, "compile", compiler)
    observer = WarningRecorder()
    _, result = start(make_request(data, runs, compile=True), observer)
    return result, observer.warnings


def test_the_compiled_pass_is_the_one_that_trains(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def note_calls(model: Callable[[Tensor], Tensor], *, dynamic: bool) -> Callable[[Tensor], Tensor]:
        assert dynamic is False

        def forward(images: Tensor) -> Tensor:
            calls.append(len(images))
            return model(images)

        return forward

    result, warnings = run_compiled(tiny_data, tmp_path / "compiled", note_calls, monkeypatch)
    _, plain = start(make_request(tiny_data, tmp_path / "plain"))
    assert warnings == []
    assert calls == [20, 16, *(2 * [20, 20, 20, 20, 16])]  # every size is tried, then the steps
    assert result["training"]["compile"] is True
    assert plain["training"]["compile"] is False
    # Trying it left no trace.
    assert result["test"] == plain["test"]
    assert result["validation"] == plain["validation"]


# A new shape is compiled anew, which may fail when the last batch of an epoch comes: too late, if nobody tried before.
@pytest.mark.parametrize("when", ["compiling", "forward", "backward", "forward of the last batch"])
def test_a_compiler_that_fails_costs_a_warning_and_nothing_else(
    when: str, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unsupported(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor) -> Tensor:
            return logits.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            raise RuntimeError("no backward here\nsecond line")

    def fail(model: Callable[[Tensor], Tensor], **_options: Any) -> Callable[[Tensor], Tensor]:
        def forward(images: Tensor) -> Tensor:
            if when == "forward" or (when == "forward of the last batch" and len(images) == 16):
                raise RuntimeError(f"no {when} here\nsecond line")
            logits = model(images)
            if when == "backward":
                logits = Unsupported.apply(logits)  # type: ignore[no-untyped-call]
            return logits

        if when == "compiling":
            raise RuntimeError("no compiling here\nsecond line")
        return forward

    result, warnings = run_compiled(tiny_data, tmp_path / "failed", fail, monkeypatch)
    _, plain = start(make_request(tiny_data, tmp_path / "plain"))
    assert warnings == [f"--compile: torch.compile failed, so the run goes on without it: no {when} here"]
    assert result["training"]["compile"] is False  # as it ran, so that its speed is not taken for a compiled one
    assert result["test"] == plain["test"]


def test_states_are_those_of_the_plain_model(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own tracing, without the compiler behind it, which takes long.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    observer = WarningRecorder()
    compiled, result = start(make_request(tiny_data, tmp_path / "compiled", model="cnn", compile=True), observer)
    plain, expected = start(make_request(tiny_data, tmp_path / "plain", model="cnn"))
    assert observer.warnings == []
    for name in ("last_file", "best_file"):
        ours, theirs = (load_checkpoint(getattr(run.folder, name))["model"] for run in (compiled, plain))
        assert list(ours) == list(theirs), name
    assert result["test"]["exact_match"]["total"] == expected["test"]["exact_match"]["total"]
    build_model("cnn", plain.model_config).load_state_dict(load_checkpoint(compiled.folder.best_file)["model"])


def test_statistics_of_normalisations_are_not_touched_by_the_trial(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    changes = {"model": "caps-resnet", "images": 40, "epochs": None}
    compiled, _ = start(make_request(tiny_data, tmp_path / "compiled", compile=True, **changes))
    plain, _ = start(make_request(tiny_data, tmp_path / "plain", **changes))
    states = [torch.load(run.folder.best_file, weights_only=True)["model"] for run in (compiled, plain)]
    assert any("running_mean" in key for key in states[0])
    for key, value in states[0].items():
        assert value.equal(states[1][key]), key
