"""A step in parts, clipped or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.errors import UserError
from overlaycaps.train.checkpoint import load_checkpoint
from tests.train.runs import begin
from tests.train.test_loop import make_request


@pytest.mark.parametrize("model", ["caps", "caps-matrix", "cnn"])
@pytest.mark.parametrize("parts", [3, 20])
def test_parts_of_a_batch_make_up_the_whole(model: str, parts: int, tiny_data: Path, tmp_path: Path) -> None:
    whole = begin(make_request(tiny_data, tmp_path / "whole", model=model, precision="fp32"))
    split = begin(make_request(tiny_data, tmp_path / "parts", model=model, precision="fp32", accumulate=parts))
    assert split["training"]["accumulate"] == parts
    assert split["training"]["steps"] == whole["training"]["steps"]
    ours, theirs = (load_checkpoint(tmp_path / name / "run/last.pt")["model"] for name in ("parts", "whole"))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=2e-3, atol=2e-4, msg=name)


def test_parts_do_not_replace_a_batch_that_is_normalised(tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--accumulate 2: resnet18 normalises over each batch \(in stem_norm\)"):
        begin(make_request(tiny_data, tmp_path, model="resnet18", accumulate=2))


def test_clipping_bounds_the_gradient(tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[float] = []
    step = torch.optim.SGD.step

    def watch(self: Any, *arguments: Any, **more: Any) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return step(self, *arguments, **more)

    monkeypatch.setattr(torch.optim.SGD, "step", watch)
    begin(make_request(tiny_data, tmp_path / "free", optimizer="sgd"))
    free, norms[:] = [*norms], []
    begin(make_request(tiny_data, tmp_path / "clipped", optimizer="sgd", clip_norm=0.01))
    assert max(free) > 0.02
    assert max(norms) <= 0.01 * 1.001
    assert min(free[:1]) > norms[0]


def test_a_refused_choice_makes_no_folder(tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--accumulate 2"):
        begin(make_request(tiny_data, tmp_path / "runs", model="resnet18", accumulate=2))
    assert not (tmp_path / "runs").exists()
