"""A run that was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaycaps.errors import Interrupted
from tests.train.runs import begin
from tests.train.test_loop import StopAfter, make_request


@pytest.fixture
def stopped(tiny_data: Path, tmp_path: Path) -> Path:
    """The folder of a run that was stopped in its second epoch, with a state before the last one."""
    stopper = StopAfter(7)
    with pytest.raises(Interrupted):
        begin(make_request(tiny_data, tmp_path / "runs"), stopper, stopper.stop)
    begin(make_request(tiny_data, tmp_path / "whole"))
    return tmp_path / "runs/run"
