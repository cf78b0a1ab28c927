"""Which device a run gets, and what is said about it."""

from __future__ import annotations

import pytest
import torch

from overlaycaps.errors import UsageError
from overlaycaps.train.runtime import select_runtime


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)


def test_a_gpu_that_is_not_there_is_replaced_by_the_cpu_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpus(monkeypatch, 0)
    runtime, warnings = select_runtime(0, False, "auto")
    assert (runtime.device.type, runtime.precision) == ("cpu", "fp32")
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
