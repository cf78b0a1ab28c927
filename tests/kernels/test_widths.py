"""The fused loop for processors with narrower vectors than this one's."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from overlaycaps.kernels import compiler, native_backend
from tests.kernels.problems import PROBLEMS
from tests.kernels.test_attention_pass import assert_equal_to_rounding, attend, attend_exactly, native_only

# What the compiler may use -> numbers side by side in a vector.
WIDTHS = {"-march=x86-64-v4": 16, "-march=x86-64-v3": 8, "-march=x86-64": 4}
NEEDED = {"-march=x86-64-v4": "AVX512", "-march=x86-64-v3": "AVX2", "-march=x86-64": ""}


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("the instruction sets are those of x86-64")
    if not torch.backends.cpu.get_cpu_capability().startswith(("AVX512", NEEDED[request.param])):
        pytest.skip(f"this processor has no {NEEDED[request.param]}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_TUNINGS", ((request.param,),))
    monkeypatch.setattr(compiler, "_FLAGS", ("-O1", *compiler._FLAGS[1:]))  # quicker to compile, the same arithmetic
    native_backend._load_library.cache_clear()
    yield WIDTHS[request.param]
    native_backend._load_library.cache_clear()


@native_only
def test_every_width_is_exact(width: int) -> None:
    assert native_backend._load_library().overlaycaps_lanes() == width
    for problem in PROBLEMS.values():
        operands = problem.make(torch.float32)
        assert_equal_to_rounding(attend("native", problem, operands), attend_exactly(problem, operands))
