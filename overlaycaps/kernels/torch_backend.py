"""The routed passes in plain torch: any device, any float type. The reference and the fallback.

A vector pose of D numbers is a matrix of D rows and one column, so one code path serves both pose types: a vote is
always the matrix product ``W_ij @ P_i``. Shapes: see the legend in :mod:`overlaycaps.kernels`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Votes are made for a few children at a time: smaller groups cost calls, larger ones fall out of the caches. 4 MiB of
# float32 is a choice between the two, not a measured optimum.
_MAX_VOTES_IN_FLIGHT = 2**20


def gather_children(poses: Tensor, kernel_px: int, stride_px: int = 1) -> Tensor:
    """Return the children that each position's parents see.

    Args:
        poses: poses of the layer below, (n, R, C, B, H, W).
        kernel_px: height and width k of the kernel; no padding.
        stride_px: step of the kernel.

    Returns:
        Poses (n k k, R, C, T) with T = B H' W', H' = (H - k) // stride + 1 and W' alike; children ordered by capsule,
        then by row and by column of the kernel.
    """
    patches = poses.unfold(4, kernel_px, stride_px).unfold(5, kernel_px, stride_px)
    return patches.permute(0, 6, 7, 1, 2, 3, 4, 5).flatten(5).flatten(0, 2).contiguous()


def uniform_pass(poses: Tensor, weight: Tensor, kernel_px: int, stride_px: int = 1) -> Tensor:
    r"""Sum of the votes when coefficients do not depend on the position; no vote and no gathered child is ever formed.

    Coefficients that are equal at every position can be part of the matrices, and then the sum is linear in the poses,

    .. math:: s_j = \sum_i W_{ij} P_i,

    hence one convolution, with the columns of the poses as further images of the batch.

    Args:
        poses: poses of the layer below, (n, R, C, B, H, W).
        weight: transformation matrices times coefficients, (I, J, Q, R), children ordered as in
            :func:`gather_children`.
        kernel_px: height and width k of the kernel; no padding.
        stride_px: step of the kernel.

    Returns:
        The sums :math:`s_j` before any normalisation, (J, Q, C, B, H', W').

    Source: with coefficients 1/J, the first pass of procedure 1 in Tsai et al. 2020 (arXiv 2002.04764), where the
    parents are still zero.
    """
    _, num_parents, parent_rows, rows = weight.shape
    number, _, columns, batch, height, width = poses.shape
    filters = weight.view(number, kernel_px, kernel_px, num_parents, parent_rows, rows)
    if height == width == kernel_px:
        # One position a sample: a matrix product, which is several times faster than a convolution this large.
        features = poses.permute(2, 3, 0, 4, 5, 1).reshape(columns * batch, -1)
        matrix = filters.permute(3, 4, 0, 1, 2, 5).reshape(num_parents * parent_rows, -1)
        products = torch.mm(features, matrix.T).view(columns, batch, 1, 1, num_parents, parent_rows)
        return products.permute(4, 5, 0, 1, 2, 3)
    # Channels lie innermost everywhere, as poses of a layer do, so that vector poses are not copied.
    images = poses.permute(2, 3, 4, 5, 0, 1).reshape(columns * batch, height, width, number * rows)
    filters = filters.permute(3, 4, 1, 2, 0, 5).reshape(num_parents * parent_rows, kernel_px, kernel_px, -1)
    maps = torch.nn.functional.conv2d(images.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2), stride=stride_px)
    sums: Tensor = maps.unflatten(1, (num_parents, parent_rows)).unflatten(0, (columns, batch))
    return sums.permute(2, 3, 0, 1, 4, 5)


def attention_pass(
    poses: Tensor, weight: Tensor, parents: Tensor, scale: float, kernel_px: int, stride_px: int = 1
) -> Tensor:
    """The routed pass of :func:`overlaycaps.kernels.attention_pass`, with the votes of a few children at a time.

    The backward pass forms the votes again, so that the memory in use grows with gathered children, parents and
    coefficients but never with the votes.
    """
    # Under autocast the operands may be of low precision, in which neither softmax nor sums are to be trusted.
    poses, weight, parents = _raise_precision(poses, weight, parents)
    children = gather_children(poses, kernel_px, stride_px)
    sums: Tensor = _AttentionPass.apply(  # type: ignore[no-untyped-call]
        children, weight, parents.flatten(3).contiguous(), scale
    )
    return sums.view(parents.shape)


def map_votes(
    function: Callable[..., tuple[Tensor, ...]], children: Tensor, weight: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """Apply a function to all votes, a block of positions at a time.

    For routings that need every vote of a position at once. The votes of one block exist at a time, forward and
    backward; the backward pass forms them again.

    Args:
        function: takes votes (I, J, Q, C, T') and the ``others`` at the same positions; returns tensors (..., T').
        children: poses of the children, (I, R, C, T).
        weight: transformation matrices, (I, J, Q, R).
        others: further inputs (..., T).

    Returns:
        What the function returns, put together again, (..., T). All is computed in float32 at least.
    """

    def apply(weight: Tensor, children: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(children.device.type, enabled=False):
            return function(_form_votes(children, weight), *others)

    weight, children, *others = _raise_precision(weight, children, *others)  # type: ignore[assignment]
    num_children, num_parents, parent_rows, _ = weight.shape
    columns, positions = children.shape[2:]
    block = max(1, _MAX_VOTES_IN_FLIGHT // (num_children * num_parents * parent_rows * columns))
    if block >= positions:
        return apply(weight, children, *others)
    parts = []
    for start in range(0, positions, block):
        here = (tensor[..., start : start + block] for tensor in (children, *others))
        parts.append(checkpoint(apply, weight, *here, use_reentrant=False))
    return tuple(torch.cat(results, dim=-1) for results in zip(*parts, strict=True))


def _group_size(weight: Tensor, columns: int, positions: int) -> int:
    _, num_parents, parent_rows, _ = weight.shape
    return max(1, _MAX_VOTES_IN_FLIGHT // (num_parents * parent_rows * columns * positions))


def _form_votes(children: Tensor, weight: Tensor) -> Tensor:
    """Votes of a group of children: (G, R, C, T) and (G, J, Q, R) -> (G, J, Q, C, T)."""
    size, num_parents, parent_rows, rows = weight.shape
    columns, positions = children.shape[2:]
    votes = torch.bmm(
        weight.reshape(size, num_parents * parent_rows, rows),
        children.reshape(size, rows, columns * positions),
    )
    return votes.view(size, num_parents, parent_rows, columns, positions)


class _AttentionPass(torch.autograd.Function):
    """Streams over groups of children (I, R, C, T); parents and sums are (J, Q, C, T)."""

    @staticmethod
    def forward(ctx: Any, children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
        with torch.autocast(parents.device.type, enabled=False):
            group = _group_size(weight, *children.shape[2:])
            sums = torch.zeros_like(parents)
            coefficients = []
            for start in range(0, len(children), group):
                votes = _form_votes(children[start : start + group], weight[start : start + group])
                agreement = (votes * parents).sum((2, 3)) * scale
                routing = torch.softmax(agreement, dim=1)
                coefficients.append(routing)
                _add_weighted(sums, votes, routing)
            ctx.save_for_backward(children, weight, parents, *coefficients)
        ctx.scale, ctx.group = scale, group
        return sums

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        children, weight, parents, *coefficients = ctx.saved_tensors
        scale, group = ctx.scale, ctx.group
        _, num_parents, parent_rows, rows = weight.shape
        columns, positions = children.shape[2:]
        grad_sums = grad_sums.contiguous()
        grad_children = torch.empty_like(children)
        grad_weight = torch.empty_like(weight)
        grad_parents = torch.zeros_like(parents)
        with torch.autocast(parents.device.type, enabled=False):
            for start, routing in zip(range(0, len(children), group), coefficients, strict=True):
                own = slice(start, start + len(routing))
                votes = _form_votes(children[own], weight[own])
                grad_routing = (votes * grad_sums).sum((2, 3))
                # Softmax backward over the parents, then the scale.
                inner = (routing * grad_routing).sum(1, keepdim=True)
                grad_agreement = (grad_routing - inner).mul_(routing).mul_(scale)
                _add_weighted(grad_parents, votes, grad_agreement)
                grad_votes = torch.mul(routing[:, :, None, None], grad_sums, out=votes)
                grad_votes.addcmul_(grad_agreement[:, :, None, None], parents)
                flat = grad_votes.view(len(routing), num_parents * parent_rows, columns * positions)
                matrices = weight[own].reshape(len(routing), num_parents * parent_rows, rows)
                poses = children[own].reshape(len(routing), rows, columns * positions)
                grad_children[own] = torch.bmm(matrices.mT, flat).view_as(children[own])
                grad_weight[own] = torch.bmm(flat, poses.mT).view_as(weight[own])
        return grad_children, grad_weight, grad_parents, None


def _raise_precision(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors in the widest of their types, and in float32 at least."""
    widest = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return [tensor.to(widest) for tensor in tensors]


def _add_weighted(total: Tensor, votes: Tensor, coefficients: Tensor) -> None:
    """``total += sum over the group of coefficients x votes``: (J,Q,C,T), (G,J,Q,C,T), (G,J,T)."""
    spread = coefficients[:, :, None, None]
    if len(votes) == 1:
        total.addcmul_(votes[0], spread[0])
    else:
        total.add_((votes * spread).sum(0))
