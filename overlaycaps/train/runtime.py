"""Where a run computes: device, precision, and what a reader must know of both to believe its timings."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from overlaycaps import __version__
from overlaycaps.errors import UsageError
from overlaycaps.kernels import choose_backend
from overlaycaps.memory import peak_memory_mib
from overlaycaps.processor import name_processor
from overlaycaps.train.ranks import ALONE, Ranks
from overlaycaps.train.threads import choose_num_threads


@dataclass(frozen=True)
class Runtime:
    """Where and how a run computes.

    Attributes:
        device: of the run.
        precision: ``fp32``, or ``bf16`` autocast.
        num_threads: on the CPU, of each process.
        ranks: this process among those of the job.
    """

    device: torch.device
    precision: str
    num_threads: int
    ranks: Ranks = ALONE

    def __str__(self) -> str:
        several = f", {self.ranks.size} processes" if self.ranks.size > 1 else ""
        return f"{self.device} in {self.precision}{several}"

    def prepare(self) -> None:
        """Set up the process: call it once, before anything is computed."""
        torch.set_num_threads(self.num_threads)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        # What has to be compiled is compiled now; it is not to count as training time.
        choose_backend(self.device.type)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which forward passes run."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def synchronize(self) -> None:
        """Wait until the device has done what it was given, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def measure_peak_memory_mib(self) -> float | None:
        """Return the most memory in use so far, in MiB: by tensors on the GPU, else by the whole process.

        None where the system does not tell.
        """
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        return peak_memory_mib()

    def describe(self) -> dict[str, Any]:
        """Return the ``environment`` object of a run's result."""
        return {
            "device": str(self.device),
            "device_name": _name_device(self.device),
            "threads": self.num_threads,
            "processes": self.ranks.size,
            "kernels": choose_backend(self.device.type).backend,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "overlaycaps": __version__,
            "platform": platform.platform(),
        }


def select_runtime(
    gpu: int | None, cpu: bool, precision: str, threads: int | None = None, ranks: Ranks = ALONE
) -> tuple[Runtime, list[str]]:
    """Choose device, precision and threads.

    Of several processes each takes the GPU whose number is its rank on its machine.

    Args:
        gpu: ordinal that was asked for, or none.
        cpu: the CPU was asked for.
        precision: ``auto``, ``fp32`` or ``bf16``.
        threads: number of threads that was asked for, or none.
        ranks: this process among those of the job.

    Returns:
        The runtime, and warnings to show: a GPU that was asked for where there is none is replaced by the CPU.

    Raises:
        UsageError: if both devices were asked for, the ordinal is not among the GPUs that exist, there are more
            processes than GPUs, or the number of threads is none.
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
    if use_gpu and ranks.size > 1:
        if gpu is not None:
            raise UsageError(
                f"--gpu {gpu}: each of several processes takes a GPU of its own; leave it out, or say by "
                "CUDA_VISIBLE_DEVICES which."
            )
        if ranks.local_size > num_gpus:
            raise UsageError(
                f"{ranks.local_size} processes on a machine with {num_gpus} GPUs: start one for each, or give --cpu."
            )
        gpu = ranks.local_rank
    device = torch.device("cuda", gpu or 0) if use_gpu else torch.device("cpu")
    if precision == "auto":
        has_bfloat16 = torch.cuda.is_bf16_supported() if use_gpu else has_fast_bfloat16()
        precision = "bf16" if has_bfloat16 else "fp32"
    return Runtime(device, precision, choose_num_threads(threads), ranks), warnings


def has_fast_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AMX or AVX512-BF16); others only imitate it, slowly."""
    # Not torch.ops.mkldnn._is_mkldnn_bf16_supported: it is content with AVX512, which imitates.
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, query, lambda: False)() for query in queries)


def _name_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return name_processor()
