"""Routed passes to be computed, and a literal way to compute them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from overlaycaps.kernels import gather_children

SCALE = 0.7
LAYOUTS = {
    "batch innermost": (0, 1, 2, 4, 5, 3),
    "space innermost": (0, 1, 2, 3, 4, 5),
    "pose innermost": (3, 4, 5, 0, 1, 2),
    "nothing in order": (2, 5, 0, 4, 1, 3),
}


@dataclass(frozen=True)
class Problem:
    """Sizes of a routed pass; letters as in :mod:`overlaycaps.kernels`."""

    capsules: int = 2
    rows: int = 3
    parent_rows: int = 3
    columns: int = 1
    batch: int = 5
    height: int = 4
    width: int = 4
    kernel_px: int = 2
    stride_px: int = 1
    parents: int = 4

    @property
    def children(self) -> int:
        return self.capsules * self.kernel_px**2

    def make(
        self, dtype: torch.dtype = torch.double, layout: str = "pose innermost", seed: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Poses, weight and parents, random, laid out in memory as asked, with gradients to be had."""
        random = torch.Generator().manual_seed(seed)
        space = [(size - self.kernel_px) // self.stride_px + 1 for size in (self.height, self.width)]
        below = (self.capsules, self.rows, self.columns, self.batch, self.height, self.width)
        here = (self.parents, self.parent_rows, self.columns, self.batch, *space)
        weight = torch.randn(self.children, self.parents, self.parent_rows, self.rows, generator=random)
        operands = [
            lay_out(torch.randn(below, generator=random), layout),
            weight / self.rows**0.5,
            lay_out(torch.randn(here, generator=random), layout),
        ]
        poses, weight, parents = (operand.to(dtype).requires_grad_() for operand in operands)
        return poses, weight, parents


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values in another order of memory."""
    order = LAYOUTS[layout]
    inverse = [order.index(axis) for axis in range(6)]
    return tensor.permute(order).contiguous().permute(inverse)


def attend_with_all_votes(poses: Tensor, weight: Tensor, parents: Tensor, problem: Problem) -> Tensor:
    """The equations, with every vote in memory."""
    children = gather_children(poses, problem.kernel_px, problem.stride_px)
    flat = parents.flatten(3)
    votes = torch.einsum("ijqr,irct->ijqct", weight, children)
    agreement = SCALE * torch.einsum("ijqct,jqct->ijt", votes, flat)
    return torch.einsum("ijt,ijqct->jqct", agreement.softmax(1), votes).view(parents.shape)


def differentiate(sums: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of a fixed reading of the sums."""
    direction = torch.randn(sums.shape, generator=torch.Generator().manual_seed(1)).to(sums.dtype)
    return torch.autograd.grad(sums, operands, direction)


PROBLEMS = {
    "vector": Problem(),
    "matrix": Problem(rows=2, parent_rows=2, columns=2),
    "batch of 1": Problem(batch=1),
    "batch of 16": Problem(batch=16, rows=4, parent_rows=4),
    "batch of 17": Problem(batch=17, rows=4, parent_rows=4, columns=4),
    "batch of 50": Problem(batch=50, rows=16, parent_rows=16, height=2, width=2),
    "whole input": Problem(kernel_px=4, parents=10, rows=8, parent_rows=8),
    "kernel of 1": Problem(kernel_px=1),
    "stride of 2": Problem(kernel_px=3, stride_px=2, height=7, width=5),
    "not square": Problem(height=6, width=3),
    "one parent": Problem(parents=1),
    "one capsule": Problem(capsules=1, kernel_px=1, height=1, width=1),
    "parents of another size": Problem(rows=5, parent_rows=7, columns=3),
    "eight columns": Problem(rows=8, parent_rows=8, columns=8, parents=3, batch=18),
    "poses longer than a vector": Problem(rows=35, parent_rows=19, batch=33, height=2, width=3),
    "many capsules": Problem(capsules=9, parents=17, rows=6, parent_rows=6, columns=6),
}
