"""From what a user asks for to a run that is ready to go: defaults filled in, name chosen, everything checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from overlaycaps.config import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_EPOCHS,
    DEFAULT_LR,
    DEFAULT_ROUTING,
    DEFAULT_WEIGHT_DECAY,
    SIZES,
    CapsuleConfig,
    TrainConfig,
)
from overlaycaps.data import OverlayData, load_data
from overlaycaps.errors import UsageError, UserError
from overlaycaps.models import MODELS, build_model
from overlaycaps.tables import is_target, look_up
from overlaycaps.train.run_folder import RunFolder
from overlaycaps.train.runtime import Runtime, select_runtime


@dataclass(frozen=True)
class TrainRequest:
    """What a user asks for; ``None`` stands for the default."""

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
    lr: float | None = None
    precision: str = "auto"
    routing: str = DEFAULT_ROUTING
    routing_iterations: int = CapsuleConfig.iterations
    schedule: str = CapsuleConfig.schedule
    scale_agreement: bool = CapsuleConfig.scale_agreement
    layer_norm: bool = CapsuleConfig.layer_norm
    name: str | None = None


@dataclass(frozen=True)
class PreparedRun:
    """A run that can start: what it is, what it reads, where it writes, where it computes, what to warn of."""

    config: TrainConfig
    model_config: CapsuleConfig
    data: OverlayData
    folder: RunFolder
    runtime: Runtime
    warnings: list[str]

    def describe(self) -> dict[str, Any]:
        """Return the content of ``config.json``: all that decides the run."""
        described = self.data.describe()
        return {
            "training": self.config.to_dict(),
            "model": self.model_config.to_dict(),
            "data": {"path": described["path"], "digest": described["digest"]},
        }

    def is_stored(self) -> bool:
        """Whether the run's folder holds this very run: the same configuration on the same data."""
        if not self.folder.path.is_dir() or not self.folder.config_file.is_file():
            return False
        stored = self.folder.read_config()
        wanted = self.describe()
        same_data = stored.get("data", {}).get("digest") == self.data.digest
        return same_data and all(stored.get(key) == wanted[key] for key in ("training", "model"))


def prepare_run(request: TrainRequest) -> PreparedRun:
    """Fill in the defaults, check everything, read the data; nothing is written yet.

    Raises:
        UsageError: if an option's value does not fit.
        data_gen.errors.DataError: if the data file cannot be used.
    """
    look_up(MODELS, request.model, "--model")
    look_up(SIZES, request.size, "--size")
    runtime, warnings = select_runtime(request.gpu, request.cpu, request.precision)
    data = load_data(request.data_path)
    config = TrainConfig(
        model=request.model,
        size=request.size,
        seed=request.seed,
        num_images=_choose_num_images(request.epochs, request.images, len(data.train)),
        batch_size=request.batch_size,
        lr=DEFAULT_LR if request.lr is None else request.lr,
        weight_decay=DEFAULT_WEIGHT_DECAY,
        precision=request.precision,
    )
    model_config = replace(
        SIZES[request.size],
        canvas_px=data.canvas_px,
        routing=request.routing,
        iterations=request.routing_iterations,
        schedule=request.schedule,
        scale_agreement=request.scale_agreement,
        layer_norm=request.layer_norm,
    )
    # The model knows what fits it (a matrix pose needs a square); what it makes of the configuration is the run's.
    model_config = build_model(request.model, model_config).config
    folder = RunFolder(request.runs_dir / _check_name(request.name or _name_run(config, model_config)))
    return PreparedRun(config, model_config, data, folder, runtime, warnings)


def prepare_resumed_run(path: Path, gpu: int | None, cpu: bool, named: Collection[str] = frozenset()) -> PreparedRun:
    """Read an unfinished run back from its folder, with the data that it was begun on.

    A folder is data, and may be someone else's: it must not choose code to import. A model or routing that is given by
    its place (``package.module:attribute``) is used only if the user names it again, in ``named``.

    Raises:
        UserError: if the folder is not a run's, the run is finished, it has no state to continue from, or the data
            file is not the one that the run was begun on.
    """
    folder = RunFolder(path)
    if not path.exists():
        raise UserError(f"{path} does not exist; there is no run to resume.")
    content = folder.read_config()
    if folder.is_finished():
        raise UserError(f"{path} is finished already; see it with `overlaycaps compare`.")
    if not folder.can_resume():
        raise UserError(f"{path} has no saved state to continue from; start it again with --force.")
    try:
        config = TrainConfig.from_dict(content["training"])
        model_config = CapsuleConfig.from_dict(content["model"])
        data_path, digest = Path(content["data"]["path"]), content["data"]["digest"]
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder.config_file} is damaged: {error} is missing or of the wrong type.") from error
    except UsageError as error:
        raise UserError(f"{folder.config_file} is damaged: {error}") from error
    for option, name in (("--model", config.model), ("--routing", model_config.routing)):
        if is_target(name) and name not in named:
            raise UserError(f"{path} runs code from {name}; if you trust it, say so with `{option} {name}`.")
    runtime, warnings = select_runtime(gpu, cpu, config.precision)
    data = load_data(data_path)
    if data.digest != digest:
        raise UserError(f"{data_path} is not the data that {path} was begun on; its digest differs.")
    return PreparedRun(config, model_config, data, folder, runtime, warnings)


def _choose_num_images(epochs: int | None, images: int | None, num_train: int) -> int:
    if epochs is not None and images is not None:
        raise UsageError("--epochs and --images exclude each other; give one of them.")
    for option, value in (("--epochs", epochs), ("--images", images)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: it must be at least 1.")
    return images if images is not None else (epochs or DEFAULT_EPOCHS) * num_train


def _name_run(config: TrainConfig, model_config: CapsuleConfig) -> str:
    """Return the name of a run's folder: model, what differs from the defaults in routing, size, budget, seed."""
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
        f"seed{config.seed}": True,
    }
    # A model or routing of the user's own may be named by its place, with a colon, which not every file system takes.
    return "-".join(part.replace(":", ".") for part, is_shown in parts.items() if is_shown)


def _check_name(name: str) -> str:
    if not name or name in {".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise UsageError(f"--name {name!r}: give the name of a folder inside --runs, without slashes.")
    return name
