"""The schedule and what decays."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from overlaycaps.config import SIZES, TrainConfig
from overlaycaps.models import MODELS, build_model
from overlaycaps.train.checkpoint import load_checkpoint, save_checkpoint
from overlaycaps.train.lr_schedules.one_cycle import scale_lr
from overlaycaps.train.optimizers.build import make_optimizer

CONFIG = TrainConfig(
    model="caps",
    size="tiny",
    seed=0,
    num_images=100,
    batch_size=10,
    lr=0.01,
    weight_decay=0.1,
    precision="fp32",
)


def test_the_schedule_rises_to_its_peak_and_falls_to_nothing() -> None:
    factors = [scale_lr(step, 100, 0.2) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 25)
    assert factors[20] == 1
    assert factors[60] == pytest.approx(0.5)
    assert factors[100] == 0
    assert factors[:21] == sorted(factors[:21])
    assert factors[20:] == sorted(factors[20:], reverse=True)


@pytest.mark.parametrize("num_steps", range(1, 12))
def test_the_schedule_fits_runs_of_any_length(num_steps: int) -> None:
    assert all(0 < scale_lr(step, num_steps, 0.2) <= 1 for step in range(num_steps))


def test_the_schedule_has_the_shape_of_torchs_one_cycle() -> None:
    model = build_model("cnn", SIZES["tiny"])
    optimizer, _ = make_optimizer(model, CONFIG, 1000)
    theirs = OneCycleLR(optimizer, 0.01, total_steps=1000, pct_start=0.2, cycle_momentum=False)
    for step in range(1000):
        assert scale_lr(step, 1000, 0.2) == pytest.approx(theirs.get_last_lr()[0] / 0.01, abs=0.02)
        optimizer.step()
        theirs.step() if step < 999 else None


@pytest.mark.parametrize("name", MODELS)
def test_only_what_multiplies_decays(name: str) -> None:
    model = build_model(name, SIZES["tiny"])
    optimizer, _ = make_optimizer(model, CONFIG, 10)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    decayed, others = ([names[id(p)] for p in group["params"]] for group in optimizer.param_groups)
    assert sorted(decayed + others) == sorted(names.values())
    assert all(key.endswith("weight") and "norm" not in key for key in decayed)
    assert all("norm" in key or key.endswith("bias") for key in others)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("name", ["caps", "caps-matrix", "cnn"])
def test_the_fused_update_is_the_plain_one(name: str) -> None:
    # The fused loop walks over memory: filters with channels innermost must meet gradients of the same layout.
    outcomes = []
    for fused in (True, False):
        torch.manual_seed(0)
        model = build_model(name, SIZES["tiny"])
        optimizer, _ = make_optimizer(model, CONFIG, 10)
        assert optimizer.defaults["fused"] is True
        if not fused:
            optimizer = AdamW([{**group, "fused": False} for group in optimizer.param_groups], betas=(0.9, 0.99))
        images = torch.randint(0, 256, (4, 36, 36), dtype=torch.uint8)
        for _ in range(3):
            optimizer.zero_grad()
            model(images).square().sum().backward()
            optimizer.step()
        outcomes.append(list(model.parameters()))
    for own, plain in zip(*outcomes, strict=True):
        torch.testing.assert_close(own, plain)


def test_where_there_is_no_fused_update_torch_chooses() -> None:
    optimizer, _ = make_optimizer(build_model("cnn", SIZES["tiny"]).to("meta"), CONFIG, 10)
    assert optimizer.defaults["fused"] is None


def descend(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
    images = torch.randint(0, 256, (4, 36, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(images).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("fused", [True, None])
def test_an_update_goes_on_from_a_file_as_if_never_stopped(fused: bool | None, tmp_path: Path) -> None:
    # None: the state of a run that was begun before updates were fused; it goes on as it was begun.
    model = build_model("cnn", SIZES["tiny"])
    optimizer, _ = make_optimizer(model, CONFIG, 10)
    if fused is None:
        optimizer = AdamW([{**group, "fused": None} for group in optimizer.param_groups], betas=(0.9, 0.99))
    for seed in (1, 2):
        descend(model, optimizer, seed)
    save_checkpoint(tmp_path / "state.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    state = load_checkpoint(tmp_path / "state.pt")
    resumed = build_model("cnn", SIZES["tiny"])
    resumed.load_state_dict(state["model"])
    resumed_optimizer, _ = make_optimizer(resumed, CONFIG, 10)
    resumed_optimizer.load_state_dict(state["optimizer"])
    assert [group["fused"] for group in resumed_optimizer.param_groups] == [fused, fused]
    for kept in resumed_optimizer.state.values():
        assert kept["step"].dtype == torch.float32
        assert kept["step"] == 2
    for seed in (3, 4):
        descend(model, optimizer, seed)
        descend(resumed, resumed_optimizer, seed)
    for own, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert own.equal(theirs)
