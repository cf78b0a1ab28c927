"""Which implementation of the routed pass is used where."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from overlaycaps.errors import UsageError
from overlaycaps.kernels import native_backend, torch_backend
from overlaycaps.kernels.native_backend import BackendUnavailableError

Backend = Callable[..., Tensor]
"""A routed pass: arguments and result as those of :func:`attention_pass`."""

BACKENDS: dict[str, Backend] = {"native": native_backend.attention_pass, "torch": torch_backend.attention_pass}
VARIABLE = "OVERLAYCAPS_KERNELS"


class FallbackWarning(RuntimeWarning):
    """The fused loop cannot be used; the run goes on, slower."""


@dataclass(frozen=True)
class Choice:
    """A backend, and a line for the user if it is not the one that was wanted."""

    backend: str
    note: str | None = None


def attention_pass(
    poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int, stride_px: int = 1
) -> Tensor:
    r"""One pass of inverted dot-product attention; the votes never exist all at once.

    .. math::

        V_{ij} = W_{ij} P_i, \quad
        a_{ij} = \mathrm{scale} \cdot \langle P_j, V_{ij} \rangle, \quad
        r_{ij} = \frac{\exp a_{ij}}{\sum_{j'} \exp a_{ij'}}, \quad
        s_j = \sum_i r_{ij} V_{ij}

    The softmax runs over the parents j. Exact in forward and backward, up to rounding; the backward pass forms the
    votes again. The same on every call for the same number of threads.

    Args:
        poses: poses of the layer below, (n, R, C, B, H, W); in memory in any order.
        weight: transformation matrices, (I, J, Q, R), I = n k k, children ordered as in
            :func:`overlaycaps.kernels.gather_children`.
        parents: poses of the parents so far, (J, Q, C, B, H', W'); in memory in any order.
        scale: factor on the agreement.
        kernel_px: height and width k of the kernel; no padding.
        stride_px: step of the kernel.

    Returns:
        The sums :math:`s_j` before any normalisation, (J, Q, C, B, H', W'); at least in float32, in which all is
        computed.

    Raises:
        UsageError: if the environment asks for a backend that there is not.

    Source: eqs. 1-3 and procedure 1 in Tsai et al. 2020 (arXiv 2002.04764).
    """
    if poses.device.type == "cpu":
        sums: Tensor = _attend_on_cpu(poses, weight, parents, scale, kernel_px, stride_px)
        return sums
    return torch_backend.attention_pass(poses, weight, parents, scale, kernel_px, stride_px)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # C code is nothing that torch.compile can look into
def _attend_on_cpu(
    poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int, stride_px: int
) -> Tensor:
    choice = choose_backend("cpu")
    if choice.note:
        _warn_once(choice.note)
    # The fused loop knows one type; what is narrower is widened, what is wider is left to torch.
    fits = all(tensor.dtype in (torch.float32, torch.bfloat16, torch.float16) for tensor in (poses, weight, parents))
    backend = BACKENDS[choice.backend if fits else "torch"]
    return backend(poses, weight, parents, scale, kernel_px, stride_px)


@cache
def _warn_once(note: str) -> None:
    # Not left to the filter "once": whoever changes the filters meanwhile, as torch does, makes Python forget.
    warnings.warn(note, FallbackWarning, stacklevel=4)


def choose_backend(device_type: str) -> Choice:
    """Return the backend for a kind of device: ``native`` on the CPU where it works, ``torch`` elsewhere.

    The environment variable ``OVERLAYCAPS_KERNELS`` (``auto``, ``native``, ``torch``) may ask for one.

    Raises:
        UsageError: if it asks for another.
    """
    wanted = os.environ.get(VARIABLE, "auto") or "auto"
    if wanted not in ("auto", *BACKENDS):
        raise UsageError(f"{VARIABLE}={wanted}: no such backend; choose one of auto, {', '.join(BACKENDS)}.")
    if wanted == "torch" or device_type != "cpu":
        return Choice("torch")
    reason = _try_native()
    if reason is None:
        return Choice("native")
    return Choice("torch", f"routing runs in plain torch, several times slower: {reason}.")


@cache
def _try_native() -> str | None:
    """Return why the native backend cannot be used, or nothing."""
    try:
        native_backend.check()
    except BackendUnavailableError as error:
        return str(error)
    return None
