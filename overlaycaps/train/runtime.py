"""Where a run computes: device, precision, and what a reader must know of both to believe its timings."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from overlaycaps import __version__
from overlaycaps.errors import UsageError


@dataclass(frozen=True)
class Runtime:
    """A device and the precision of the run on it (``fp32``, or ``bf16`` autocast)."""

    device: torch.device
    precision: str

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward passes run."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def describe(self) -> dict[str, Any]:
        """Return the ``environment`` object of a run's result."""
        return {
            "device": str(self.device),
            "device_name": _name_device(self.device),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "overlaycaps": __version__,
            "platform": platform.platform(),
        }


def select_runtime(gpu: int | None, cpu: bool, precision: str) -> tuple[Runtime, list[str]]:
    """Choose device and precision.

    Args:
        gpu: ordinal that was asked for, or none.
        cpu: the CPU was asked for.
        precision: ``auto``, ``fp32`` or ``bf16``.

    Returns:
        The runtime, and warnings to show: a GPU that was asked for where there is none is replaced by the CPU.

    Raises:
        UsageError: if both were asked for, or the ordinal is not among the GPUs that exist.
    """
    if gpu is not None and cpu:
        raise UsageError("--gpu and --cpu exclude each other; give one of them.")
    warnings = []
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu is not None and num_gpus and not 0 <= gpu < num_gpus:
        raise UsageError(f"--gpu {gpu}: this machine has GPU 0 to {num_gpus - 1}.")
    if gpu is not None and gpu < 0:
        raise UsageError(f"--gpu {gpu}: the number of a GPU is 0 or more.")
    if gpu is not None and not num_gpus:
        warnings.append(f"--gpu {gpu}: no CUDA device is available to torch {torch.__version__}; using the CPU.")
    use_gpu = num_gpus > 0 and not cpu
    device = torch.device("cuda", gpu or 0) if use_gpu else torch.device("cpu")
    if precision == "auto":
        precision = "bf16" if use_gpu and torch.cuda.is_bf16_supported() else "fp32"
    return Runtime(device, precision), warnings


def _name_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
