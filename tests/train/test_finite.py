"""Runs that diverge: they say where, and replace no sound state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.config import SIZES
from overlaycaps.errors import UserError
from overlaycaps.models import build_model
from overlaycaps.train.checkpoint import load_checkpoint
from overlaycaps.train.finite import describe_broken_layer
from overlaycaps.train.runtime import select_runtime
from overlaycaps.train.step import TrainStep
from tests.train.runs import assert_same_end, begin, go_on
from tests.train.test_loop import make_request


def poison(monkeypatch: pytest.MonkeyPatch, at_step: int, do: Callable[[Any], None]) -> None:
    """Do something to a step before it is taken."""
    take = TrainStep.take

    def take_poisoned(self: Any, images: Any, labels: Any, batch_size: int, number: int) -> float:
        if number == at_step:
            do(self)
        return take(self, images, labels, batch_size, number)

    monkeypatch.setattr(TrainStep, "take", take_poisoned)


def find_weight(model: str) -> str:
    return next(name for name, value in build_model(model, SIZES["tiny"]).named_parameters() if value.ndim > 1)


def test_a_run_that_diverges_says_where_and_keeps_its_last_good_state(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = find_weight("cnn")

    @torch.no_grad()
    def spoil(step: Any) -> None:
        dict(step.model.named_parameters())[name].fill_(float("nan"))

    poison(monkeypatch, 7, spoil)
    with pytest.raises(UserError) as caught:
        begin(make_request(tiny_data, tmp_path, model="cnn"))
    message = str(caught.value)
    assert message.startswith("the loss is nan at step 7, at a learning rate of 0.00")
    assert f"in the weights of layer {name.rpartition('.')[0]};" in message
    assert "lower --lr or give --clip-norm" in message
    assert message.endswith(f"The last good state is in {tmp_path}/run/last.pt.")
    state = load_checkpoint(tmp_path / "run/last.pt")
    assert state["position"]["step"] == 5
    assert all(tensor.isfinite().all() for tensor in state["model"].values())
    assert json.loads((tmp_path / "run/failure.json").read_text()) == {"message": message}
    monkeypatch.undo()
    go_on(tmp_path / "run")
    begin(make_request(tiny_data, tmp_path / "whole", model="cnn"))
    assert_same_end(tmp_path / "whole/run", tmp_path / "run")
    assert not (tmp_path / "run/failure.json").exists()


def test_an_output_that_diverges_names_its_layer(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name, module in build_model("caps", SIZES["tiny"]).named_modules() if name]

    def spoil(step: Any) -> None:
        module = dict(step.model.named_modules())[names[0]]
        module.register_forward_hook(lambda _module, _inputs, output: output * float("inf"))

    poison(monkeypatch, 3, spoil)
    with pytest.raises(UserError, match=rf"at step 3, .* is in the output of layer {names[0]};"):
        begin(make_request(tiny_data, tmp_path))


def test_a_layer_is_found_as_the_step_computes_it_and_keeps_its_statistics() -> None:
    model = build_model("resnet18", SIZES["tiny"])
    images = torch.randint(0, 256, (3, 36, 36), dtype=torch.uint8)
    runtime, _ = select_runtime(None, True, "fp32")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert describe_broken_layer(model, images, runtime) is None

    def spoil(module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * float("inf") if module.training else output

    dict(model.named_modules())["stem_norm"].register_forward_hook(spoil)
    assert describe_broken_layer(model, images, runtime) == "the output of layer stem_norm"
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = find_weight("caps")
    kept: dict[str, Any] = {}

    def spoil(step: Any) -> None:
        parameter = dict(step.model.named_parameters())[name]
        parameter.register_hook(lambda gradient: gradient * float("inf"))
        kept["before"] = {key: value.clone() for key, value in step.model.state_dict().items()}
        kept["model"] = step.model

    poison(monkeypatch, 4, spoil)
    with pytest.raises(UserError, match=rf"the gradient is not finite at step 4, .* layer {name.rpartition('.')[0]};"):
        begin(make_request(tiny_data, tmp_path, clip_norm=1.0))
    for key, value in kept["model"].state_dict().items():
        assert torch.equal(value, kept["before"][key]), key


def test_weights_that_are_not_finite_replace_no_state(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = TrainStep.take

    def take_and_spoil(self: Any, images: Any, labels: Any, batch_size: int, number: int) -> float:
        loss = take(self, images, labels, batch_size, number)
        if number == 10:
            with torch.no_grad():
                next(self.model.parameters()).fill_(float("inf"))
        return loss

    monkeypatch.setattr(TrainStep, "take", take_and_spoil)
    with pytest.raises(UserError, match=r"the weights are not finite after step 10, .*The last good state is in"):
        begin(make_request(tiny_data, tmp_path))
    assert load_checkpoint(tmp_path / "run/last.pt")["position"]["step"] == 5
