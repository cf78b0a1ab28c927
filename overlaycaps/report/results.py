"""Reading the results of runs; a result file is data that anyone may have made, so nothing in it is taken on trust."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlaycaps.errors import UserError
from overlaycaps.metrics.multilabel import Proportion
from overlaycaps.schemas import RESULT_SCHEMA, RESULT_VERSION

_MAX_RESULT_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Layer:
    """A row of a model's matching table."""

    layer: str
    shape: tuple[int, ...]
    neurons: int
    parameters: int


@dataclass(frozen=True)
class RunResult:
    """A finished run, as ``result.json`` has it; ``source`` is the whole file."""

    name: str
    model: str
    pose: str | None
    routing: str | None
    iterations: int | None
    size: str
    parameters: int
    layers: tuple[Layer, ...]
    seed: int
    images_seen: int
    images_planned: int
    patience: int | None
    batch_size: int
    lr: float
    recipe: str
    precision: str
    train_time_s: float
    images_per_s: float
    data_path: str
    data_digest: str
    num_train: int
    fresh: bool
    device: str
    device_name: str
    threads: int
    versions: tuple[tuple[str, str], ...]
    validation_exact: Proportion
    exact: Proportion
    exact_single: Proportion
    exact_overlaid: Proportion
    top_k: Proportion
    half_credit: float
    hamming_loss: float
    macro_f1: float
    source: dict[str, Any]

    @property
    def is_capsule(self) -> bool:
        """Whether the model is a capsule network."""
        return self.pose is not None

    @property
    def neurons(self) -> tuple[int, ...]:
        """Neurons of each layer, in order."""
        return tuple(layer.neurons for layer in self.layers)

    def is_matched_to(self, other: RunResult) -> bool:
        """Whether one is a capsule network and the other a CNN with equal layers and neurons per layer."""
        return self.is_capsule != other.is_capsule and self.neurons == other.neurons

    def shares_conditions_with(self, other: RunResult) -> bool:
        """Whether data, budget and seed are equal, so that a difference is the models'."""
        mine, others = ((run.data_digest, run.fresh, run.budget, run.seed) for run in (self, other))
        return mine == others

    @property
    def budget(self) -> tuple[int, int | None]:
        """Images that the run was to see, and the patience by which it might end before."""
        return self.images_planned, self.patience


@dataclass(frozen=True)
class RunCollection:
    """What stands in a folder of runs: finished runs by name, and what is listed but never averaged in."""

    runs: tuple[RunResult, ...]
    unfinished: tuple[str, ...]
    skipped: tuple[str, ...]


def collect_runs(runs_dir: Path) -> RunCollection:
    """Read every finished run in a folder.

    Raises:
        UserError: if there is no such folder, no finished run in it, or a damaged result.
    """
    first_step = "train one first: `overlaycaps train --model caps`"
    if not runs_dir.is_dir():
        raise UserError(f"{runs_dir} is not a folder with runs; {first_step}.")
    runs, unfinished, skipped = [], [], []
    for folder in sorted(path for path in runs_dir.iterdir() if path.is_dir()):
        if (folder / "result.json").is_file():
            runs.append(read_result(folder / "result.json"))
        elif (folder / "config.json").is_file():
            unfinished.append(folder.name)
        else:
            skipped.append(folder.name)
    if not runs:
        if unfinished:
            command = shlex.join(["overlaycaps", "train", "--resume", str(runs_dir / unfinished[0])])
            names = ", ".join(unfinished)
            raise UserError(
                f"{runs_dir} holds no finished run, but unfinished ones: {names}; continue with `{command}`."
            )
        raise UserError(f"{runs_dir} holds no finished run; {first_step}.")
    return RunCollection(tuple(runs), tuple(unfinished), tuple(skipped))


def read_result(path: Path) -> RunResult:
    """Read one ``result.json``; the run is named after its folder, which may have been renamed.

    Raises:
        UserError: if the file is damaged, foreign or of a newer version; it names the file and the field.
    """
    try:
        if path.stat().st_size > _MAX_RESULT_BYTES:
            raise UserError(f"{path} is too large for a result; move its folder away.")
        source = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} could not be read: {error}; move its folder away or train the run again.") from error
    reader = _Reader(path, source, "")
    if reader.read("schema", str) != RESULT_SCHEMA:
        raise UserError(f"{path} is not a result of overlaycaps; move its folder away.")
    version = reader.read("schema_version", int)
    if version != RESULT_VERSION:
        raise UserError(f"{path} has version {version}; this program reads {RESULT_VERSION}. Upgrade overlaycaps.")
    return _parse(reader, path.parent.name)


def _parse(reader: _Reader, name: str) -> RunResult:
    model, training, data = reader.enter("model"), reader.enter("training"), reader.enter("data")
    environment, test = reader.enter("environment"), reader.enter("test")
    result = RunResult(
        name=name,
        model=model.read("name", str),
        pose=model.read_optional("pose", str),
        routing=model.read_optional("routing", str),
        iterations=model.read_optional("routing_iterations", int),
        size=model.read("size", str),
        parameters=model.count("parameters"),
        layers=tuple(_parse_layer(layer) for layer in model.enter_list("matching")),
        seed=training.count("seed"),
        images_seen=training.count("images_seen"),
        # Results from before runs could end early do not name it.
        images_planned=training.count("images_planned" if "images_planned" in training.content else "images_seen"),
        patience=training.read_optional("patience", int) if "patience" in training.content else None,
        batch_size=training.count("batch_size"),
        lr=training.measure("lr"),
        recipe=_describe_recipe(training),
        precision=training.read("precision", str),
        train_time_s=training.measure("train_time_s"),
        images_per_s=training.measure("images_per_s"),
        data_path=data.read("path", str),
        data_digest=data.read("digest", str),
        num_train=data.count("num_train"),
        # Results from before there was --fresh do not name it.
        fresh="fresh" in training.content and training.read("fresh", bool),
        device=environment.read("device", str),
        device_name=environment.read("device_name", str),
        threads=environment.count("threads"),
        versions=tuple((name, environment.read(name, str)) for name in ("overlaycaps", "torch", "numpy", "python")),
        validation_exact=_parse_proportion(reader.enter("validation").enter("exact_match")),
        exact=_parse_proportion(test.enter("exact_match")),
        exact_single=_parse_proportion(test.enter("exact_match_single")),
        exact_overlaid=_parse_proportion(test.enter("exact_match_overlaid")),
        top_k=_parse_proportion(test.enter("top_k")),
        half_credit=test.enter("half_credit").measure("mean"),
        hamming_loss=test.measure("hamming_loss"),
        macro_f1=test.measure("macro_f1"),
        source=reader.content,
    )
    parts = (result.exact_single, result.exact_overlaid)
    added = Proportion(sum(part.correct for part in parts), sum(part.total for part in parts))
    if added != result.exact or result.exact.total < 1:
        raise UserError(f"{reader.path}: test.exact_match is not the sum of singles and overlays; train the run again.")
    return result


def _describe_recipe(training: _Reader) -> str:
    """Return in words what decides how the weights are found; what an older program did not know is left out."""
    parts = [f"batch {training.count('batch_size')}", f"lr {training.measure('lr'):g}"]
    for name in ("optimizer", "schedule"):
        if name in training.content:
            parts.insert(0, training.read(name, str)[:40])
    for name in ("weight_decay", "warm_up"):
        if name in training.content:
            parts.append(f"{name.replace('_', ' ')} {training.measure(name):g}")
    if training.content.get("clip_norm") is not None:
        parts.append(f"clipped at {training.measure('clip_norm'):g}")
    return ", ".join(parts)


def _parse_layer(reader: _Reader) -> Layer:
    shape = reader.read("shape", list)
    if not all(isinstance(size, int) for size in shape):
        raise reader.refuse("shape", "a list of whole numbers")
    return Layer(reader.read("layer", str), tuple(shape), reader.count("neurons"), reader.count("parameters"))


def _parse_proportion(reader: _Reader) -> Proportion:
    proportion = Proportion(reader.count("correct"), reader.count("total"))
    if proportion.correct > proportion.total:
        raise reader.refuse("correct", "at most total")
    return proportion


class _Reader:
    """Reads fields of a JSON object by name and type; every refusal names the file and the field."""

    def __init__(self, path: Path, content: Any, place: str) -> None:
        self.path, self.place = path, place
        if not isinstance(content, dict):
            raise UserError(f"{path}: {place or 'the file'} is not a JSON object; train the run again.")
        self.content: dict[str, Any] = content

    def refuse(self, name: str, wanted: str) -> UserError:
        """Return the error for a field that is not what it should be."""
        found = repr(self.content[name])[:60] if name in self.content else "missing"
        return UserError(f"{self.path}: {self.place}{name} should be {wanted}, but is {found}; train the run again.")

    def read(self, name: str, kind: type) -> Any:
        """Return a field of a type."""
        value = self.content.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refuse(name, {str: "text", int: "a whole number", list: "a list"}.get(kind, kind.__name__))
        return value

    def read_optional(self, name: str, kind: type) -> Any:
        """Return a field of a type, or ``None`` where the file says null."""
        return None if name in self.content and self.content[name] is None else self.read(name, kind)

    def count(self, name: str) -> int:
        """Return a whole number that is not negative."""
        value: int = self.read(name, int)
        if value < 0:
            raise self.refuse(name, "a whole number, 0 or more")
        return value

    def measure(self, name: str) -> float:
        """Return a finite number that is not negative."""
        value = self.content.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, "a number, 0 or more")
        try:
            number = float(value)
        except OverflowError:  # a whole number may have any number of digits
            number = math.inf
        if not math.isfinite(number) or number < 0:
            raise self.refuse(name, "a number, 0 or more")
        return number

    def enter(self, name: str) -> _Reader:
        """Return the reader of an object inside."""
        if name not in self.content:
            raise self.refuse(name, "an object")
        return _Reader(self.path, self.content[name], f"{self.place}{name}.")

    def enter_list(self, name: str) -> list[_Reader]:
        """Return the readers of a list of objects inside."""
        entries: list[Any] = self.read(name, list)
        return [_Reader(self.path, entry, f"{self.place}{name}[{i}].") for i, entry in enumerate(entries)]
