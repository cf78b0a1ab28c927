"""From what a user asks for to a run that is ready to go: defaults filled in, name chosen, everything checked."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlaycaps.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_CHECKPOINT_MINUTES,
    DEFAULT_EPOCHS,
    DEFAULT_ROUTING,
    SIZES,
    CapsuleConfig,
    ExecutionConfig,
    TrainConfig,
)
from overlaycaps.data.loading import OverlayData, load_data
from overlaycaps.errors import UsageError, UserError
from overlaycaps.models import MODELS, build_model
from overlaycaps.models.base import OverlayModel
from overlaycaps.processor import count_cores
from overlaycaps.tables import is_target, look_up
from overlaycaps.train.batch_norm import find_batch_norm
from overlaycaps.train.lr_schedules import DEFAULT_LR_SCHEDULE, DEFAULT_WARM_UP
from overlaycaps.train.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from overlaycaps.train.order import BatchPlan
from overlaycaps.train.ranks import ALONE, Ranks
from overlaycaps.train.run_folder import RunFolder
from overlaycaps.train.runtime import Runtime, select_runtime
from overlaycaps.train.tensorboard import check_tensorboard


@dataclass(frozen=True)
class TrainRequest:
    """What a user asks for; ``None`` stands for the default, or for anything.

    ``data_digest`` is that of the data that must be in the file.
    """

    model: str
    size: str
    data_path: Path
    runs_dir: Path
    gpu: int | None = None
    cpu: bool = False
    seed: int = 0
    epochs: int | None = None
    images: int | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    optimizer: str = DEFAULT_OPTIMIZER
    lr: float | None = None
    weight_decay: float | None = None
    lr_schedule: str = DEFAULT_LR_SCHEDULE
    warm_up: float = DEFAULT_WARM_UP
    clip_norm: float | None = None
    patience: int | None = None
    precision: str = "auto"
    threads: int | None = None
    accumulate: int = 1
    checkpoint_minutes: float = DEFAULT_CHECKPOINT_MINUTES
    compile: bool = False
    fresh: bool = False
    routing: str = DEFAULT_ROUTING
    routing_iterations: int = CapsuleConfig.iterations
    schedule: str = CapsuleConfig.schedule
    scale_agreement: bool = CapsuleConfig.scale_agreement
    layer_norm: bool = CapsuleConfig.layer_norm
    name: str | None = None
    tensorboard: bool = False
    data_digest: str | None = None


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start: what it is, what it reads, where it writes, where it computes, what to warn of."""

    config: TrainConfig
    model_config: CapsuleConfig
    data: OverlayData
    folder: RunFolder
    runtime: Runtime
    warnings: list[str]
    accumulate: int = 1
    checkpoint_s: float = DEFAULT_CHECKPOINT_MINUTES * 60
    tensorboard: bool = False

    @property
    def execution(self) -> ExecutionConfig:
        """How the run is computed."""
        runtime = self.runtime
        return ExecutionConfig(runtime.precision, runtime.num_threads, runtime.ranks.size, self.accumulate)

    def plan_batches(self) -> BatchPlan:
        """Return which images every optimiser step sees."""
        config, train = self.config, self.data.train
        return BatchPlan(len(train), config.num_images, config.batch_size, config.seed, train.is_shuffled)

    def describe(self) -> dict[str, Any]:
        """Return the content of ``config.json``: all that decides the run."""
        described = self.data.describe()
        return {
            "training": self.config.to_dict(),
            "model": self.model_config.to_dict(),
            "execution": self.execution.to_dict(),
            "data": {"path": described["path"], "digest": described["digest"]},
        }

    def is_stored(self) -> bool:
        """Whether the run's folder holds this very run: the same configuration on the same data."""
        if not self.folder.path.is_dir() or not self.folder.config_file.is_file():
            return False
        stored = self.folder.read_config()
        data = stored.get("data")
        same_data = isinstance(data, dict) and data.get("digest") == self.data.digest
        try:
            # Not compared as it is written: an older program wrote fewer fields.
            training = TrainConfig.from_dict(stored["training"])
            same_training = training == replace(self.config, precision=training.precision)
            if training.precision != self.config.precision:  # but what `auto` came to may be the same
                same_training &= stored["execution"]["precision"] == self.execution.precision
        except (KeyError, TypeError, UsageError):
            return False
        return same_data and same_training and stored.get("model") == self.model_config.to_dict()


def check_request(request: TrainRequest, ranks: Ranks = ALONE) -> None:
    """Check every option as far as that can be done without the data, so that a slip is told before any work.

    Raises:
        UsageError: if an option's value does not fit.
    """
    look_up(MODELS, request.model, "--model")
    select_runtime(request.gpu, request.cpu, request.precision, request.threads, ranks)
    _check_execution(request.batch_size, request.accumulate, request.checkpoint_minutes, ranks)
    _make_model_config(request)
    if request.tensorboard:
        check_tensorboard()
    _check_budget(request)
    # How many images some epochs are is known with the data; until then, as many as fill a batch.
    _make_config(request, request.batch_size if request.images is None else request.images)
    if request.name is not None:
        _check_name(request.name)


def prepare_run(request: TrainRequest, ranks: Ranks = ALONE) -> PreparedRun:
    """Fill in the defaults, check everything, read the data; nothing is written yet.

    Every process of the job calls it for itself.

    Raises:
        UsageError: if an option's value does not fit.
        UserError: if the images of the data file do not.
        data_gen.errors.DataError: if the data file cannot be used.
    """
    check_request(request, ranks)
    runtime, warnings = select_runtime(request.gpu, request.cpu, request.precision, request.threads, ranks)
    data = load_data(request.data_path, request.seed if request.fresh else None)
    if request.data_digest not in (None, data.digest):
        raise UserError(
            f"{request.data_path} is not the data of the run that --config names; its digest differs. Give the right "
            "one, or the one that you want instead, by --data."
        )
    num_epochs = DEFAULT_EPOCHS if request.epochs is None else request.epochs
    config = _make_config(request, num_epochs * len(data.train) if request.images is None else request.images)
    try:
        model_config = replace(
            _make_model_config(request), canvas_px=data.spec.canvas_px, num_classes=data.spec.num_classes
        )
    except UsageError as error:  # every option was right before
        raise UserError(f"{request.data_path}: {error}") from error
    # The model knows what fits it (a matrix pose needs a square); what it makes of the configuration is the run's.
    model = build_model(request.model, model_config)
    _check_routing_options(request, model.describe_routing()["routing"])
    name = _name_run(config, model.config) if request.name is None else request.name
    run = PreparedRun(
        config,
        model.config,
        data,
        RunFolder(request.runs_dir / name),
        runtime,
        warnings,
        request.accumulate,
        request.checkpoint_minutes * 60,
        request.tensorboard,
    )
    _check_batch_norm(run, model)
    return run


@dataclass(frozen=True)
class ResumeRequest:
    """What a user asks for who continues a run: where, and on what; ``None`` stands for what the run had before.

    A folder is data, and may be someone else's: it must not choose code to import. A model or routing that is given by
    its place (``package.module:attribute``) is used only if the user names it again, in ``named``.
    """

    path: Path
    gpu: int | None = None
    cpu: bool = False
    named: Collection[str] = frozenset()
    data_path: Path | None = None
    threads: int | None = None
    accumulate: int | None = None
    tensorboard: bool = False
    checkpoint_minutes: float = DEFAULT_CHECKPOINT_MINUTES


def prepare_resumed_run(request: ResumeRequest, ranks: Ranks = ALONE) -> PreparedRun:
    """Read an unfinished run back from its folder, with the data that it was begun on, perhaps moved elsewhere.

    It keeps precision, threads and parts of a batch that it had before, which decide the last bits of its numbers. A
    run that was stopped before it saved any state begins anew.

    Raises:
        UserError: if the folder is not a run's, the run is finished, or the data file is not the one that the run was
            begun on.
    """
    # A run is called by its folder's name, also by those who stand in it.
    path = request.path if request.path.name not in {"", ".."} else request.path.resolve()
    folder = RunFolder(path)
    if request.tensorboard:
        check_tensorboard()
    if not path.exists():
        raise UserError(f"{path} does not exist; give the folder of an unfinished run.")
    content = folder.read_config()
    if folder.is_finished():
        raise UserError(f"{path} is finished already; see it with `overlaycaps compare`.")
    try:
        config = TrainConfig.from_dict(content["training"])
        model_config = CapsuleConfig.from_dict(content["model"])
        former = ExecutionConfig.from_dict(content["execution"]) if "execution" in content else None
        data_path, digest = request.data_path or Path(content["data"]["path"]), content["data"]["digest"]
        if not str(data_path).isprintable():
            raise UsageError("the data's path has characters that no path should have.")
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{folder.config_file} is damaged: {error} is missing or of a wrong type; start the run again with --force."
        ) from error
    except UsageError as error:
        raise UserError(f"{folder.config_file} is damaged: {error} Start the run again with --force.") from error
    for option, name in (("--model", config.model), ("--routing", model_config.routing)):
        if is_target(name) and name not in request.named:
            raise UserError(f"{path} runs code from {name}; if you trust it, say so with `{option} {name}`.")
    accumulate = request.accumulate or (former.accumulate if former else 1)
    _check_execution(config.batch_size, accumulate, request.checkpoint_minutes, ranks)
    threads = request.threads
    if threads is None and former is not None and former.processes == ranks.size and former.threads <= count_cores():
        threads = former.threads
    runtime, warnings = select_runtime(
        request.gpu, request.cpu, former.precision if former else config.precision, threads, ranks
    )
    data = load_data(data_path, config.seed if config.fresh else None)
    if data.digest != digest:
        raise UserError(
            f"{data_path} is not the data that {path} was begun on; its digest differs. Give the right one by --data."
        )
    if not folder.can_resume():
        warnings.append(f"{path} has no saved state yet; it begins anew.")
    run = PreparedRun(
        config,
        model_config,
        data,
        folder,
        runtime,
        warnings,
        accumulate,
        request.checkpoint_minutes * 60,
        request.tensorboard,
    )
    if accumulate > 1 or ranks.size > 1:
        _check_batch_norm(run, build_model(config.model, model_config))
    return run


def _check_batch_norm(run: PreparedRun, model: OverlayModel) -> None:
    """Refuse to compute batches in parts or shares that a layer of the model has to see whole.

    Raises:
        UsageError: if the run wants that.
    """
    layer, execution = find_batch_norm(model), run.execution
    if layer is None:
        return
    if execution.accumulate > 1:
        raise UsageError(
            f"--accumulate {execution.accumulate}: {run.config.model} normalises over each batch (in {layer}), so that "
            "parts of a batch do not make up the whole; leave it out."
        )
    smallest = min(run.plan_batches().batch_sizes)
    if smallest < execution.processes:
        raise UsageError(
            f"--batch-size {run.config.batch_size}: {run.config.model} normalises over each batch, and one of "
            f"{smallest} images is too small for {execution.processes} processes; choose another."
        )


def _check_execution(batch_size: int, accumulate: int, checkpoint_minutes: float, ranks: Ranks) -> None:
    if not 1 <= accumulate <= max(1, batch_size):
        raise UsageError(f"--accumulate {accumulate}: a batch of {batch_size} images has 1 to {batch_size} parts.")
    if not (math.isfinite(checkpoint_minutes) and checkpoint_minutes >= 0):
        raise UsageError(f"--checkpoint-minutes {checkpoint_minutes}: it must be 0 or more.")
    if ranks.size > max(1, batch_size):
        raise UsageError(
            f"{ranks.size} processes have nothing to share in batches of {batch_size}; raise --batch-size."
        )


def _check_budget(request: TrainRequest) -> None:
    if request.epochs is not None and request.images is not None:
        raise UsageError("--epochs and --images exclude each other; give one of them.")
    for option, value in (("--epochs", request.epochs), ("--images", request.images)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: it must be at least 1.")


def _make_config(request: TrainRequest, num_images: int) -> TrainConfig:
    optimizer = look_up(OPTIMIZERS, request.optimizer, "--optimizer")
    return TrainConfig(
        model=request.model,
        size=request.size,
        seed=request.seed,
        num_images=num_images,
        batch_size=request.batch_size,
        lr=optimizer.lr if request.lr is None else request.lr,
        weight_decay=optimizer.weight_decay if request.weight_decay is None else request.weight_decay,
        precision=request.precision,
        compile=request.compile,
        fresh=request.fresh,
        optimizer=request.optimizer,
        lr_schedule=request.lr_schedule,
        warm_up=request.warm_up,
        clip_norm=request.clip_norm,
        patience=request.patience,
    )


def _make_model_config(request: TrainRequest) -> CapsuleConfig:
    return replace(
        look_up(SIZES, request.size, "--size"),
        routing=request.routing,
        iterations=request.routing_iterations,
        schedule=request.schedule,
        scale_agreement=request.scale_agreement,
        layer_norm=request.layer_norm,
    )


def _check_routing_options(request: TrainRequest, routing: str | None) -> None:
    """Refuse a choice of routing that the model does not make: the run's name would promise it."""
    choices = {f"--routing {request.routing}": request.routing not in (DEFAULT_ROUTING, routing)}
    if routing is None:
        iterations = request.routing_iterations
        choices |= {
            f"--routing-iterations {iterations}": iterations != CapsuleConfig.iterations,
            f"--schedule {request.schedule}": request.schedule != CapsuleConfig.schedule,
            "--no-agreement-scale": not request.scale_agreement,
            "--no-layer-norm": not request.layer_norm,
        }
    for option, is_idle in choices.items():
        if is_idle:
            own = f"always uses {routing}" if routing else "has no routing"
            raise UsageError(f"{option}: {request.model} {own}; leave it out, or choose another --model.")


def _name_run(config: TrainConfig, model_config: CapsuleConfig) -> str:
    """Return the name of a run's folder: model, what differs from the defaults in routing, size, budget, seed."""
    optimizer = OPTIMIZERS[config.optimizer]
    thousands, rest = divmod(config.num_images, 1000)
    parts = {
        config.model: True,
        model_config.routing: model_config.routing != DEFAULT_ROUTING,
        f"it{model_config.iterations}": model_config.iterations != CapsuleConfig.iterations,
        model_config.schedule: model_config.schedule != CapsuleConfig.schedule,
        "unscaled": not model_config.scale_agreement,
        "unnormalized": not model_config.layer_norm,
        config.size: True,
        str(config.num_images) if rest else f"{thousands}k": True,
        config.optimizer: config.optimizer != DEFAULT_OPTIMIZER,
        f"lr{config.lr:g}": config.lr != optimizer.lr,
        f"batch{config.batch_size}": config.batch_size != DEFAULT_BATCH_SIZE,
        f"decay{config.weight_decay:g}": config.weight_decay != optimizer.weight_decay,
        config.lr_schedule: config.lr_schedule != DEFAULT_LR_SCHEDULE,
        f"warmup{config.warm_up:g}": config.warm_up != DEFAULT_WARM_UP,
        f"clip{config.clip_norm:g}" if config.clip_norm is not None else "unclipped": config.clip_norm is not None,
        f"patience{config.patience}": config.patience is not None,
        "fresh": config.fresh,
        "compiled": config.compile,
        f"seed{config.seed}": True,
    }
    # A model or routing of the user's own may be named by its place, with a colon, which not every file system takes.
    return "-".join(part.replace(":", ".") for part, is_shown in parts.items() if is_shown)


def _check_name(name: str) -> None:
    is_plain = name.strip() == name and name.isprintable() and "/" not in name and "\\" not in name
    if not is_plain or name in {"", ".", ".."}:
        raise UsageError(f"--name {name!r}: give a plain folder name: no slashes, no line breaks, no spaces around.")
