"""Which backend is chosen, and what happens where the fused loop cannot be had."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from overlaycaps.errors import UsageError
from overlaycaps.kernels import FallbackWarning, attention_pass, backends, choose_backend, native_backend
from overlaycaps.kernels.native_backend import BackendUnavailableError
from tests.kernels.problems import SCALE, Problem, attend_with_all_votes
from tests.kernels.test_attention_pass import native_only

_CACHES = (backends._try_native, backends._warn_once, native_backend._load_library)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has not yet looked for the fused loop, with an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    for found in _CACHES:
        found.cache_clear()
    yield
    for found in _CACHES:
        found.cache_clear()


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "echo"])
def test_without_a_working_compiler_torch_takes_over_and_says_so_once(
    fresh: None, compiler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", compiler)
    problem = Problem()
    operands = problem.make(torch.float32)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            sums = attention_pass(*operands, SCALE, problem.kernel_px)
    messages = [str(warning.message) for warning in caught if warning.category is FallbackWarning]
    assert len(messages) == 1
    assert messages[0].startswith("routing runs in plain torch, several times slower: ")
    assert compiler in messages[0]
    torch.testing.assert_close(sums, attend_with_all_votes(*operands, problem))


def test_a_machine_without_any_compiler_is_told_what_to_install(
    fresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    choice = choose_backend("cpu")
    assert choice.backend == "torch"
    assert choice.note is not None
    assert "no C compiler (cc, gcc or clang) is installed" in choice.note


@native_only
def test_wrong_numbers_are_not_used(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    call = native_backend._call

    def miscalculate(function: Any, *arguments: Any) -> None:
        # The scale is the second argument of both entries.
        call(function, arguments[0], type(arguments[1])(2 * arguments[1].value), *arguments[2:])

    monkeypatch.setattr(native_backend, "_call", miscalculate)
    with pytest.raises(BackendUnavailableError, match="wrong numbers"):
        native_backend.check()
    assert choose_backend("cpu").backend == "torch"


@native_only
def test_the_fused_loop_is_used_on_the_cpu_for_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)
    used = []
    for name, function in backends.BACKENDS.items():

        def note(*arguments: Any, name: str = name, function: Any = function) -> torch.Tensor:
            used.append(name)
            result: torch.Tensor = function(*arguments)
            return result

        monkeypatch.setitem(backends.BACKENDS, name, note)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        attention_pass(*Problem().make(dtype), SCALE, 2)
    monkeypatch.setenv(backends.VARIABLE, "torch")
    attention_pass(*Problem().make(torch.float32), SCALE, 2)
    assert used == ["native", "native", "torch", "torch"]


def test_other_devices_use_torch() -> None:
    assert choose_backend("cuda") == backends.Choice("torch")


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.VARIABLE, "fast")
    with pytest.raises(UsageError, match=r"OVERLAYCAPS_KERNELS=fast: .* auto, native, torch"):
        choose_backend("cpu")
