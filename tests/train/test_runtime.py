"""Which device a run gets, and what is said about it."""

from __future__ import annotations

import pytest
import torch

from overlaycaps.errors import UsageError
from overlaycaps.kernels.backends import Choice
from overlaycaps.train import runtime as runtime_module
from overlaycaps.train.runtime import has_fast_bfloat16, select_runtime


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


def test_a_gpu_that_is_not_there_is_replaced_by_the_cpu_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    runtime, warnings = select_runtime(0, False, "auto")
    assert runtime.device.type == "cpu"
    assert len(warnings) == 1
    assert "--gpu 0" in warnings[0]


def test_the_cpu_is_no_surprise_when_no_gpu_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    assert select_runtime(None, False, "auto")[1] == []


def test_a_gpu_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 2)
    assert select_runtime(None, False, "auto")[0].device == torch.device("cuda", 0)
    runtime, warnings = select_runtime(1, False, "auto")
    assert (runtime.device, runtime.precision, warnings) == (torch.device("cuda", 1), "bf16", [])
    assert select_runtime(None, True, "auto")[0].device.type == "cpu"


@pytest.mark.parametrize(
    ("gpu", "cpu", "message"), [(2, False, "GPU 0 to 1"), (-1, False, "--gpu -1"), (0, True, "exclude")]
)
def test_what_cannot_be_is_a_usage_error(gpu: int, cpu: bool, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 2)
    with pytest.raises(UsageError, match=message):
        select_runtime(gpu, cpu, "auto")


@pytest.mark.parametrize(
    ("avx512", "amx", "expected"),
    [(True, False, "bf16"), (False, True, "bf16"), (True, True, "bf16"), (False, False, "fp32")],
)
def test_precision_on_the_cpu_follows_the_processor(
    avx512: bool, amx: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpus(monkeypatch, 0)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert select_runtime(None, True, "auto")[0].precision == expected
    assert select_runtime(None, True, "fp32")[0].precision == "fp32"


def test_a_torch_that_cannot_tell_means_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert not has_fast_bfloat16()


def test_threads_are_set_when_the_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    runtime, _ = select_runtime(None, True, "auto", threads=3)
    assert chosen == []
    runtime.prepare()
    assert chosen == [3]
    assert runtime.describe()["threads"] == 3


def test_the_backend_of_the_routed_passes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "choose_backend", lambda device_type: Choice("torch", "no fused loop here"))
    assert select_runtime(None, True, "auto")[0].describe()["kernels"] == "torch"
