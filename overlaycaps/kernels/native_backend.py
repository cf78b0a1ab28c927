"""The routed pass as one fused loop in C, for float32 on the CPU; see ``routed_pass.c`` for how it is arranged."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from overlaycaps.kernels import torch_backend
from overlaycaps.kernels.compiler import CompilationError, compile_library

_SOURCE = Path(__file__).with_name("routed_pass.c")


class BackendUnavailableError(Exception):
    """The backend cannot be used here; the message is the reason, in a few words."""


def attention_pass(
    poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int, stride_px: int = 1
) -> Tensor:
    """The routed pass of :func:`overlaycaps.kernels.attention_pass`, with the votes of one child in the cache.

    Operands of lower precision are taken to float32 first. The memory in use grows with the operands and the sums;
    neither votes, nor gathered children, nor coefficients are kept.

    Raises:
        BackendUnavailableError: if the library could not be made.
        MemoryError: if there is no memory for packed copies of the operands.
    """
    sums: Tensor = _AttentionPass.apply(  # type: ignore[no-untyped-call]
        poses, weight, parents, scale, kernel_px, stride_px
    )
    return sums


def check() -> None:
    """Make the library, load it, and compare it with the torch backend on a small problem.

    Raises:
        BackendUnavailableError: if one of these fails.
    """
    random = torch.Generator().manual_seed(0)
    poses, weight, parents = (
        torch.randn(shape, generator=random).requires_grad_()
        for shape in ((3, 2, 2, 5, 3, 3), (12, 3, 2, 2), (3, 2, 2, 5, 2, 2))
    )
    # Training may be resumed inside inference code; a comparison of gradients needs them all the same.
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        outcomes = []
        for backend in (attention_pass, torch_backend.attention_pass):
            sums = backend(poses, weight, parents, 0.5, 2)
            outcomes.append((sums, *torch.autograd.grad(sums.square().sum(), (poses, weight, parents))))
    for own, expected in zip(*outcomes, strict=True):
        if not torch.allclose(own, expected, rtol=1e-4, atol=1e-4):
            raise BackendUnavailableError("the compiled loop computes wrong numbers on this machine")


class _AttentionPass(torch.autograd.Function):
    """Calls the two entries of the library; operands and gradients may lie in memory in any order."""

    @staticmethod
    def forward(
        ctx: Any, poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int, stride_px: int
    ) -> Tensor:
        ctx.input_types = (poses.dtype, weight.dtype, parents.dtype)
        poses, weight, parents = (tensor.float() for tensor in (poses, weight.contiguous(), parents))
        sums = torch.empty_like(parents)
        ctx.problem = (_list_sizes(poses, weight, kernel_px, stride_px), ctypes.c_float(scale))
        _call(
            _load_library().overlaycaps_forward,
            *ctx.problem,
            *_point(poses),
            _address(weight),
            *_point(parents),
            *_point(sums),
        )
        ctx.save_for_backward(poses, weight, parents)
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        poses, weight, parents = ctx.saved_tensors
        grad_sums = grad_sums.float()
        grads = (torch.empty_like(poses), torch.empty_like(weight), torch.empty_like(parents))
        _call(
            _load_library().overlaycaps_backward,
            *ctx.problem,
            *_point(poses),
            _address(weight),
            *_point(parents),
            *_point(grad_sums),
            *_point(grads[0]),
            _address(grads[1]),
            *_point(grads[2]),
        )
        grad_poses, grad_weight, grad_parents = (
            grad.to(dtype) for grad, dtype in zip(grads, ctx.input_types, strict=True)
        )
        return grad_poses, grad_weight, grad_parents, None, None, None


def _call(function: Any, *arguments: Any) -> None:
    if function(*arguments, ctypes.c_int64(torch.get_num_threads()), _find_omp_parallel()):
        raise MemoryError("not enough memory for a routed pass; use a smaller batch")


def _list_sizes(poses: Tensor, weight: Tensor, kernel_px: int, stride_px: int) -> ctypes.Array[ctypes.c_int64]:
    return _to_array((*poses.shape, kernel_px, stride_px, weight.shape[1], weight.shape[2]))


def _point(tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.Array[ctypes.c_int64]]:
    return _address(tensor), _to_array(tensor.stride())


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _to_array(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)


@cache
def _load_library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(compile_library(_SOURCE)))
        for name in ("overlaycaps_forward", "overlaycaps_backward"):
            getattr(library, name).restype = ctypes.c_int
    except CompilationError as error:
        raise BackendUnavailableError(str(error)) from error
    except (OSError, AttributeError) as error:
        raise BackendUnavailableError(f"the compiled loop cannot be loaded: {error}") from error
    return library


@cache
def _find_omp_parallel() -> ctypes.c_void_p:
    """Return GNU OpenMP's way to start threads, from the copy that torch uses; null where torch has none.

    With threads of its own the loop would compete for the cores with torch's, which go on spinning for a while after
    their work.
    """
    for library in Path(torch.__file__).parent.glob("lib/libtorch_cpu.so"):
        try:
            return ctypes.cast(ctypes.CDLL(str(library)).GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            break
    return ctypes.c_void_p(None)
