"""The routed pass written down plainly and compiled by ``torch.compile``.

    V_ij = W_ij P_i        a_ij = scale <P_j, V_ij>        r_ij = softmax_j a_ij        s_j = sum_i r_ij V_ij

Children are (I, R, C, T), weights (I, J, Q, R), parents and sums (J, Q, C, T), positions T innermost. Three ways to
run the same expression are here: all votes at once; a block of positions at a time; a group of children at a time. The
backward passes of the last two form the votes again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_VOTES = 2**22
"""Elements of the votes that exist at a time, about."""


@torch.compile(dynamic=False)
def attend_at_once(children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
    """Form all votes at once."""
    votes = torch.einsum("ijqr,irct->ijqct", weight, children)
    agreement = (votes * parents).sum((2, 3)) * scale
    return (votes * agreement.softmax(1)[:, :, None, None]).sum(0)


def attend_by_position(children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
    """Form the votes of a block of positions at a time."""
    block = max(16, MAX_VOTES * parents.shape[-1] // _count_votes(weight, children) // 16 * 16)
    blocks = zip(children.split(block, -1), parents.split(block, -1), strict=True)
    return torch.cat(_checkpoint(((own, weight, above, scale) for own, above in blocks)), -1)


def attend_by_child(children: Tensor, weight: Tensor, parents: Tensor, scale: float) -> Tensor:
    """Form the votes of a group of children at a time."""
    group = max(1, MAX_VOTES * len(children) // _count_votes(weight, children))
    groups = zip(children.split(group), weight.split(group), strict=True)
    sums = _checkpoint((own, matrices, parents, scale) for own, matrices in groups)
    return torch.stack(sums).sum(0)


def _count_votes(weight: Tensor, children: Tensor) -> int:
    num_children, num_parents, parent_rows, _ = weight.shape
    columns, positions = children.shape[2:]
    return num_children * num_parents * parent_rows * columns * positions


def _checkpoint(problems: Iterable[tuple[Tensor, Tensor, Tensor, float]]) -> list[Tensor]:
    return [checkpoint(attend_at_once, *problem, use_reentrant=False) for problem in problems]


attention_pass = attend_by_position
