"""Training runs that a search or a comparison needs, each done once."""

from __future__ import annotations

import json
from typing import Any

from overlaycaps.train.grid import run_cell
from overlaycaps.train.interrupt import StopFlag
from overlaycaps.train.observer import SilentObserver
from overlaycaps.train.plan import TrainRequest, prepare_run


def train_once(request: TrainRequest) -> dict[str, Any]:
    """Return the result of a run, which is trained, continued or read, whatever is left to do."""
    outcome = run_cell(request, SilentObserver(), StopFlag())
    if outcome.state == "failed":
        raise RuntimeError(outcome.message)
    result: dict[str, Any] = json.loads(prepare_run(request).folder.result_file.read_text())
    return result


def read_exact_match(result: dict[str, Any], split: str) -> float:
    """Return the exact-match ratio of a split (``validation`` or ``test``), 0 to 1."""
    exact = result[split]["exact_match"]
    return float(exact["correct"] / exact["total"])
