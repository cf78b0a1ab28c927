"""What is told of the processor."""

from __future__ import annotations

import os

import pytest

from overlaycaps.processor import count_cores


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 5, 6}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert count_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert count_cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert count_cores() == 1
