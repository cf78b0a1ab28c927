"""What a routing algorithm is to a capsule layer.

Shapes, as in :mod:`overlaycaps.kernels`: poses below (n, R, C, B, H, W), weight (I, J, Q, R), poses of the parents
(J, Q, C, B, H', W').
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from overlaycaps.kernels import attention_pass, gather_children, map_votes, uniform_pass


@dataclass(frozen=True)
class PoseShape:
    """A pose as a matrix: D x 1 for a vector pose, sqrt(D) x sqrt(D) for a matrix pose."""

    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Numbers in a pose, D."""
        return self.rows * self.columns


@dataclass(frozen=True)
class RoutingOptions:
    """Choices that concern some routings; the others ignore them.

    Attributes:
        scale_agreement: attention: divide agreements by sqrt(D).
        layer_norm: attention and uniform: normalise the parents' poses.
    """

    scale_agreement: bool = True
    layer_norm: bool = True


class Capsules(NamedTuple):
    """The state of a layer after a pass.

    Attributes:
        pose: (J, Q, C, B, H, W).
        activation: how present each capsule is, in [0, 1], (J, B, H, W), where a routing has such a thing.
        memory: what the layer's routing needs of this pass in the next, batch and space innermost.
    """

    pose: Tensor
    activation: Tensor | None = None
    memory: Tensor | None = None


class Votes:
    r"""The votes :math:`V_{ij} = W_{ij} P_i` of one layer for the next, not formed until a routing asks for them.

    Args:
        below: the capsules that vote, poses (n, R, C, B, H, W).
        weight: transformation matrices, (I, J, Q, R), I = n k k.
        kernel_px: height and width k of the kernel.
        stride_px: step of the kernel.
    """

    def __init__(self, below: Capsules, weight: Tensor, kernel_px: int, stride_px: int = 1) -> None:
        self.below, self.weight, self.kernel_px, self.stride_px = below, weight, kernel_px, stride_px

    @property
    def space(self) -> tuple[int, int, int]:
        """Batch, height and width of the parents, B, H', W'; T is their product."""
        batch, height, width = self.below.pose.shape[3:]
        rows, columns = ((size - self.kernel_px) // self.stride_px + 1 for size in (height, width))
        return batch, rows, columns

    @cached_property
    def children(self) -> Tensor:
        """Poses of the children of every position, (I, R, C, T); gathered once."""
        return gather_children(self.below.pose, self.kernel_px, self.stride_px)

    @cached_property
    def child_activations(self) -> Tensor:
        """Activations of the children of every position, (I, B, H', W'); 1 where the capsules below have none."""
        activation = self.below.activation
        if activation is None:
            return self.children.new_ones(len(self.children), *self.space)
        gathered = gather_children(activation[:, None, None], self.kernel_px, self.stride_px)
        return torch.unflatten(gathered[:, 0, 0], -1, self.space)

    def sum_uniformly(self, coefficients: Tensor | None = None) -> Tensor:
        """Return the votes summed with coefficients that are equal at every position, (J, Q, C, B, H', W').

        Args:
            coefficients: (I, J); 1/J without.
        """
        if coefficients is None:
            sums = uniform_pass(self.below.pose, self.weight, self.kernel_px, self.stride_px)
            return sums / self.weight.shape[1]
        weight = self.weight * coefficients[:, :, None, None]
        return uniform_pass(self.below.pose, weight, self.kernel_px, self.stride_px)

    def sum_by_attention(self, parents: Tensor, scale: float) -> Tensor:
        """Return the votes summed with coefficients softmax over j of scale <P_j, V_ij>, shaped like ``parents``."""
        return attention_pass(self.below.pose, self.weight, parents, scale, self.kernel_px, self.stride_px)

    def map(self, function: Callable[..., tuple[Tensor, ...]], *others: Tensor) -> tuple[Tensor, ...]:
        """Let a function see all votes, some positions at a time, so that a whole layer's votes never exist at once.

        Args:
            function: takes votes (I, J, Q, C, T') and the ``others`` at the same positions, (..., T'); returns tensors
                (..., T'). Positions must not mix. The backward pass calls it again.
            others: further inputs (..., B, H', W').

        Returns:
            What the function returns, (..., B, H', W').
        """
        results = map_votes(function, self.children, self.weight, *(other.flatten(-3) for other in others))
        return tuple(result.unflatten(-1, self.space) for result in results)


class Routing(nn.Module, ABC):
    """Turns votes into parents, pass by pass; owns whatever it learns beside the transformation matrices.

    A network sweeps its layers once with :meth:`first` and then, for every further iteration, with :meth:`again`.

    Args:
        pose: shape of a parent's pose.
        num_children: children I of every parent.
        num_parents: parents J at every position.
        options: choices that the algorithm may know.
    """

    uses_activations: ClassVar[bool] = False
    """Whether the capsules below need activations; the primary capsules then learn them."""

    is_iterative: ClassVar[bool] = True
    """Whether passes after the first change anything; otherwise one pass is made, whatever was asked for."""

    def __init__(self, pose: PoseShape, num_children: int, num_parents: int, options: RoutingOptions) -> None:
        super().__init__()
        self.pose, self.num_children, self.num_parents, self.options = pose, num_children, num_parents, options

    @abstractmethod
    def first(self, votes: Votes) -> Capsules:
        """Return the parents when nothing is known of them yet."""

    @abstractmethod
    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """Return the parents after pass ``number`` (2, 3, ...), given those after the pass before."""


class PoseNorm(nn.LayerNorm):
    """LayerNorm over the D numbers of each pose, for poses (J, Q, C, B, H, W)."""

    def __init__(self, pose: PoseShape) -> None:
        super().__init__([pose.rows, pose.columns])

    def forward(self, poses: Tensor) -> Tensor:
        """Normalise poses (J, Q, C, B, H, W) over (Q, C); the result lies in memory as (B, H, W, J, Q, C).

        In float32 at least, under autocast on the CPU too: it is what autocast does on GPUs, and is faster.
        """
        if poses.dtype in (torch.bfloat16, torch.float16):
            poses = poses.float()
        normalized = super().forward(poses.permute(3, 4, 5, 0, 1, 2))
        return normalized.permute(3, 4, 5, 0, 1, 2)
