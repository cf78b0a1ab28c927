"""How far one run is, by its folder; what lies there is data that anyone may have made, nothing is taken on trust."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from overlaycaps.errors import UserError
from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.report.results import read_result
from overlaycaps.schemas import RUN_SCHEMA, RUN_VERSION
from overlaycaps.train.run_folder import RunFolder
from overlaycaps.train.run_lock import is_run_locked

State = Literal["running", "finished", "failed", "interrupted"]

_MAX_METRICS_BYTES = 64 * 2**20
_MAX_OBJECT_BYTES = 2**20  # one line of the metrics, a configuration, a reason: each has a few KiB at most
_MAX_NAME_LENGTH = 200
_MAX_MESSAGE_LENGTH = 600
_MAX_COUNT = 2**63 - 1

# A configuration names a routing for every model, and passes for every routing, whether or not it is used; which are,
# only the models themselves know, and they import torch. Of models that are not ours nothing is claimed.
_ROUTED_MODELS = frozenset({"caps", "caps-matrix", "caps-resnet"})
_FIXED_ROUTINGS = {"efficient-capsnet": ("self-attention", 1)}
_ONE_PASS_ROUTINGS = frozenset({"uniform", "self-attention"})


@dataclass(frozen=True)
class Plan:
    """What is to be trained, as ``config.json`` has it; ``None`` where that is not known."""

    model: str | None = None
    size: str | None = None
    seed: int | None = None
    num_images: int | None = None
    routing: tuple[str, int] | None = None


@dataclass(frozen=True)
class Progress:
    """What has been reached, as ``result.json`` or ``metrics.jsonl`` has it; ``None`` where that is not known."""

    images_seen: int | None = None
    exact: Proportion | None = None
    best_epoch: int | None = None
    routing: tuple[str, int] | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run as it stands: its state, why it failed if it did, and what of its files is damaged."""

    folder: RunFolder
    state: State
    plan: Plan
    progress: Progress
    reason: str | None
    faults: tuple[str, ...]


def read_status(folder: RunFolder) -> RunStatus | None:
    """Return how far a run is, or nothing if the folder is not a run's.

    Raises:
        OSError: if the system lets none of its files be read.
    """
    # The lock comes first: a run that ends just now writes its result before it lets go.
    is_running = is_run_locked(folder.path)
    plan, progress, faults = Plan(), Progress(), []
    if folder.config_file.is_file():
        try:
            config = _load(folder.config_file)
            if _find(config, "schema") != RUN_SCHEMA:
                return None
            plan = _read_plan(str(folder.config_file), config)
        except UserError as error:
            faults.append(_shorten(str(error)))
    elif not is_running:  # one that begins just now has its lock before its configuration
        return None
    state, reason = _find_state(folder, is_running)
    try:
        progress = _read_result(folder.result_file) if state == "finished" else _read_metrics(folder.metrics_file)
    except UserError as error:
        faults.append(_shorten(str(error)))
    return RunStatus(folder, state, plan, progress, reason, tuple(faults))


def _find_state(folder: RunFolder, is_running: bool) -> tuple[State, str | None]:
    """Return the state, and of a failed run the reason."""
    if is_running:
        return "running", None
    if folder.is_finished():
        return "finished", None
    reason = folder.read_failure()
    return ("interrupted", None) if reason is None else ("failed", _shorten(reason))


def _read_plan(where: str, config: Any) -> Plan:
    version = _read_count(where, config, "schema_version")
    if version != RUN_VERSION:
        raise UserError(f"{where} has version {version}; this program reads {RUN_VERSION}. Upgrade overlaycaps.")
    model = _read_name(where, config, "training.model")
    routing, passes = _read_name(where, config, "model.routing"), _read_count(where, config, "model.iterations")
    used = (routing, 1 if routing in _ONE_PASS_ROUTINGS else passes)
    return Plan(
        model=model,
        size=_read_name(where, config, "training.size"),
        seed=_read_count(where, config, "training.seed"),
        num_images=_read_count(where, config, "training.num_images"),
        routing=used if model in _ROUTED_MODELS else _FIXED_ROUTINGS.get(model),
    )


def _read_result(path: Path) -> Progress:
    result = read_result(path)
    where, content = str(path), result.source
    routing = None
    if result.routing is not None:
        passes = _read_count(where, content, "model.routing_iterations")
        routing = _read_name(where, content, "model.routing"), passes
    return Progress(
        images_seen=_read_count(where, content, "training.images_seen"),
        exact=_read_exact(where, content),
        best_epoch=_read_count(where, content, "training.best_epoch"),
        routing=routing,
    )


def _read_metrics(path: Path) -> Progress:
    """Return the position after the last evaluation and the best one; of equals the later, as in training."""
    progress = Progress(images_seen=0)
    if not path.is_file():  # nothing is evaluated yet
        return progress
    with path.open("rb") as file:
        if path.stat().st_size > _MAX_METRICS_BYTES:
            raise _describe_damage(str(path), f"it is larger than {_MAX_METRICS_BYTES // 2**20} MiB")
        number = 0
        while line := file.readline(_MAX_OBJECT_BYTES + 1):
            number += 1
            try:
                progress = _add_evaluation(f"{path}, line {number},", progress, line)
            except UserError:
                if not line.endswith(b"\n") and len(line) <= _MAX_OBJECT_BYTES:
                    break  # it is being written just now, or a crash cut it short: no evaluation is lost with it
                raise
    return progress


def _add_evaluation(where: str, before: Progress, line: bytes) -> Progress:
    entry = _parse(where, line)
    epoch, images_seen = _read_count(where, entry, "epoch"), _read_count(where, entry, "images_seen")
    exact = _read_exact(where, entry)
    if before.exact is not None and exact.ratio < before.exact.ratio:
        return Progress(images_seen, before.exact, before.best_epoch)
    return Progress(images_seen, exact, epoch)


def _read_exact(where: str, content: Any) -> Proportion:
    place = "validation.exact_match"
    correct, total = (_read_count(where, content, f"{place}.{name}") for name in ("correct", "total"))
    if correct > total or total == 0:
        raise _describe_damage(where, f"{place} is {correct} of {total}")
    return Proportion(correct, total)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return _parse(str(path), file.read(_MAX_OBJECT_BYTES + 1))


def _parse(where: str, raw: bytes) -> Any:
    if len(raw) > _MAX_OBJECT_BYTES:
        raise _describe_damage(where, f"it is longer than {_MAX_OBJECT_BYTES // 2**20} MiB")
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise _describe_damage(where, str(error)) from error


def _read_count(where: str, content: Any, place: str) -> int:
    value = _find(content, place)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_COUNT:
        raise _describe_damage(where, f"{place} should be a whole number from 0 to 2**63 - 1")
    return value


def _read_name(where: str, content: Any, place: str) -> str:
    value = _find(content, place)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_NAME_LENGTH:
        raise _describe_damage(where, f"{place} should be text of at most {_MAX_NAME_LENGTH} characters")
    return value


def _find(content: Any, place: str) -> Any:
    """Return what lies at a place like ``training.seed``, or nothing."""
    for name in place.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content


def _describe_damage(where: str, what: str) -> UserError:
    return UserError(f"{where} is damaged: {what}.")


def _shorten(text: str) -> str:
    """Return a message as one line of bounded length: those of other programs may have many lines."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_MESSAGE_LENGTH else f"{line[:_MAX_MESSAGE_LENGTH]}..."
