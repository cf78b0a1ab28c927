"""What a model and a run are made of: frozen, checked when built, the same in Python and in files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

from overlaycaps.errors import UsageError
from overlaycaps.routing import ROUTINGS, SCHEDULES
from overlaycaps.tables import look_up, refuse_name
from overlaycaps.train.lr_schedules import DEFAULT_LR_SCHEDULE, DEFAULT_WARM_UP, LR_SCHEDULES
from overlaycaps.train.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS

Pose = Literal["vector", "matrix"]
POSES: tuple[Pose, ...] = ("vector", "matrix")
PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class CapsuleConfig:
    """Every size of a capsule network; a matched CNN is derived from the same object.

    Attributes:
        num_channels: channels C of the first convolution.
        num_capsules: capsules n at each position of the primary and of the convolutional capsule layer.
        pose_size: numbers d in a pose; a square number for matrix poses.
        pose: ``vector`` (d numbers) or ``matrix`` (sqrt(d) x sqrt(d)).
        routing: a name in the table of routings.
        iterations: routing passes; the first has equal coefficients.
        schedule: a name in the table of schedules.
        scale_agreement: divide agreements by sqrt(d).
        layer_norm: normalise the poses of the routed layers.
        canvas_px: height and width of the images.
        num_classes: class capsules, one logit each.
    """

    num_channels: int
    num_capsules: int
    pose_size: int
    pose: Pose = "vector"
    routing: str = "attention"
    iterations: int = 2
    schedule: str = "concurrent"
    scale_agreement: bool = True
    layer_norm: bool = True
    canvas_px: int = 36
    num_classes: int = 10

    def __post_init__(self) -> None:
        for name in ("num_channels", "num_capsules", "pose_size", "num_classes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 1 <= self.iterations <= 10:
            raise UsageError(f"--routing-iterations {self.iterations}: choose 1 to 10.")
        if self.pose not in POSES:
            raise UsageError(f"pose {self.pose!r}: choose one of {', '.join(POSES)}.")
        if self.pose == "matrix" and math.isqrt(self.pose_size) ** 2 != self.pose_size:
            raise UsageError(
                f"a matrix pose needs a square pose size, not {self.pose_size}; use {math.isqrt(self.pose_size) ** 2} "
                f"or {(math.isqrt(self.pose_size) + 1) ** 2}, or a model with vector poses."
            )
        look_up(ROUTINGS, self.routing, "--routing")
        look_up(SCHEDULES, self.schedule, "--schedule")
        if self.grid_px < 1:
            raise UsageError(
                f"images of {self.canvas_px} px are too small for the three 3x3 layers; the smallest is 13 px."
            )

    @property
    def stem_px(self) -> int:
        """Height and width after the first convolution (3x3, stride 2, padding 1)."""
        return (self.canvas_px - 1) // 2 + 1

    @property
    def primary_px(self) -> int:
        """Height and width of the primary layer (3x3, stride 2, no padding)."""
        return (self.stem_px - 3) // 2 + 1

    @property
    def grid_px(self) -> int:
        """Height and width of the convolutional capsule layer (3x3, stride 1, no padding)."""
        return self.primary_px - 2

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CapsuleConfig:
        """Build from plain data, as in a run's ``config.json``.

        Raises:
            UsageError: if a field is missing, unknown, of the wrong type or out of range.
        """
        return cls(**_check_fields(cls, data))


# `tiny` is for tests, `small` trains on a laptop, `paper` is the size whose parameter counts the paper's table gives.
SIZES: dict[str, CapsuleConfig] = {
    "tiny": CapsuleConfig(num_channels=8, num_capsules=4, pose_size=4),
    "small": CapsuleConfig(num_channels=64, num_capsules=8, pose_size=16),
    "paper": CapsuleConfig(num_channels=1024, num_capsules=16, pose_size=64),
}
DEFAULT_SIZE = "small"
DEFAULT_ROUTING = "attention"
DEFAULT_DATA_FILE = "data.h5"
DEFAULT_RUNS_FOLDER = "runs"

# One recipe for all models; `benchmarks/recipe.py` is how it was chosen.
DEFAULT_EPOCHS = 4
DEFAULT_BATCH_SIZE = 64
DEFAULT_CHECKPOINT_MINUTES = 10.0


@dataclass(frozen=True)
class TrainConfig:
    """How a run trains; with a model's configuration and a data file it determines the run.

    Attributes:
        model: a name in the table of models.
        size: a name in the table of sizes.
        seed: of the initial weights and of the order of the images.
        num_images: training images to show in all; an epoch is one pass over the training split, the last may be cut.
        batch_size: images in an optimiser step.
        lr: peak learning rate of the schedule.
        weight_decay: of the optimiser, on matrices and convolutions only.
        precision: ``fp32`` or ``bf16`` (autocast), or ``auto``: bf16 where the device computes in it, else fp32.
        compile: pass the training step through ``torch.compile``.
        fresh: train on new overlays of the training digits in every epoch, instead of those in the file.
        optimizer: a name in the table of optimisers.
        lr_schedule: a name in the table of schedules of the learning rate.
        warm_up: share of the steps in which the learning rate rises, at least 0 and below 1.
        clip_norm: largest norm of the gradient of all parameters together; longer ones are scaled down to it.
        patience: evaluations in a row without a better validation exact match after which the run ends.
    """

    model: str
    size: str
    seed: int
    num_images: int
    batch_size: int
    lr: float
    weight_decay: float
    precision: str
    compile: bool = False
    fresh: bool = False
    optimizer: str = DEFAULT_OPTIMIZER
    lr_schedule: str = DEFAULT_LR_SCHEDULE
    warm_up: float = DEFAULT_WARM_UP
    clip_norm: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed}: choose a number from 0 to 2**63 - 1.")
        if self.batch_size < 1:
            raise UsageError(f"--batch-size {self.batch_size}: it must be at least 1.")
        if self.num_images < self.batch_size:
            raise UsageError(
                f"{self.num_images} training images do not fill one batch of {self.batch_size}; "
                "raise --images (or --epochs) or lower --batch-size."
            )
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"--lr {self.lr}: it must be a positive number.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay {self.weight_decay}: it must be 0 or a positive number.")
        look_up(OPTIMIZERS, self.optimizer, "--optimizer")
        look_up(LR_SCHEDULES, self.lr_schedule, "--lr-schedule")
        if not 0 <= self.warm_up < 1:
            raise UsageError(f"--warm-up {self.warm_up}: it is a share of the steps, from 0 to less than 1.")
        if self.clip_norm is not None and not (math.isfinite(self.clip_norm) and self.clip_norm > 0):
            raise UsageError(f"--clip-norm {self.clip_norm}: it must be a positive number.")
        if self.patience is not None and self.patience < 1:
            raise UsageError(f"--patience {self.patience}: it must be at least 1.")
        if self.precision not in PRECISIONS:
            raise refuse_name(self.precision, PRECISIONS, "--precision")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """Build from plain data, as in a run's ``config.json``.

        Raises:
            UsageError: if a field is missing, unknown, of the wrong type or out of range.
        """
        # Runs that were begun before there was a field do not name it.
        defaults = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
        return cls(**_check_fields(cls, {**defaults, **data}))


@dataclass(frozen=True)
class ExecutionConfig:
    """How a run is computed; it changes the result by rounding at most, and a resumed run keeps to it.

    Attributes:
        precision: ``fp32`` or ``bf16``: what ``auto`` came to.
        threads: of each process, on the CPU.
        processes: that share each batch.
        accumulate: parts that each process computes its share of a batch in, one after the other.
    """

    precision: str
    threads: int
    processes: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise refuse_name(self.precision, PRECISIONS, "--precision")
        for option, value in (("--threads", self.threads), ("--accumulate", self.accumulate)):
            if value < 1:
                raise UsageError(f"{option} {value}: it must be at least 1.")
        if self.processes < 1:
            raise UsageError(f"{self.processes} processes: there is at least 1.")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ExecutionConfig:
        """Build from plain data, as in a run's ``config.json``.

        Raises:
            UsageError: if a field is missing, unknown, of the wrong type or out of range.
        """
        return cls(**_check_fields(cls, data))


def _check_fields(cls: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data if it has just the fields of a dataclass, each of its type."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "int": int,
        "int | None": (int, type(None)),
        "float": (int, float),
        "float | None": (int, float, type(None)),
        "bool": bool,
    }
    wanted = {field.name: kinds.get(str(field.type), str) for field in fields(cls)}
    if set(data) != set(wanted):
        raise UsageError(f"the fields {', '.join(sorted(set(data) ^ set(wanted)))} are missing or unknown.")
    for name, kind in wanted.items():
        # In Python a truth value is a number; in a configuration it is not.
        if not isinstance(data[name], kind) or (isinstance(data[name], bool) and kind is not bool):
            raise UsageError(f"the field {name} is {data[name]!r}, which is not of its type.")
    return dict(data)
