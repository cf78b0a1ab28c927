"""What a routing algorithm is to a capsule layer.

Shapes, as in :mod:`overlaycaps.kernels`: poses below (n, R, C, B, H, W), weight (I, J, Q, R), parents
(J, Q, C, B, H', W').
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from overlaycaps.kernels import attention_pass, gather_children, uniform_pass


@dataclass(frozen=True)
class PoseShape:
    """A pose as a matrix: D x 1 for a vector pose, sqrt(D) x sqrt(D) for a matrix pose."""

    rows: int
    columns: int

    @property
    def size(self) -> int:
        """Numbers in a pose, D."""
        return self.rows * self.columns


class Votes:
    r"""The votes :math:`V_{ij} = W_{ij} P_i` of one layer for the next, not formed until a routing asks for them.

    Args:
        poses: poses of the layer below, (n, R, C, B, H, W).
        weight: transformation matrices, (I, J, Q, R), I = n k k.
        kernel_px: height and width k of the kernel.
        stride_px: step of the kernel.
    """

    def __init__(self, poses: Tensor, weight: Tensor, kernel_px: int, stride_px: int = 1) -> None:
        self.poses, self.weight, self.kernel_px, self.stride_px = poses, weight, kernel_px, stride_px

    @cached_property
    def children(self) -> Tensor:
        """Poses of the children of every position, (I, R, C, T); gathered once."""
        return gather_children(self.poses, self.kernel_px, self.stride_px)

    def sum_uniformly(self) -> Tensor:
        """Return the sum of the votes with equal coefficients, sum over i of V_ij / J, (J, Q, C, B, H', W')."""
        return uniform_pass(self.poses, self.weight, self.kernel_px, self.stride_px)

    def sum_by_attention(self, parents: Tensor, scale: float) -> Tensor:
        """Return the votes summed with coefficients softmax over j of scale <P_j, V_ij>, shaped like ``parents``."""
        sums = attention_pass(self.children, self.weight, parents.flatten(3).contiguous(), scale)
        return sums.view(parents.shape)


class Routing(nn.Module, ABC):
    """Turns votes into parent poses, pass by pass; owns whatever it learns beside the transformation matrices.

    A network sweeps its layers once with :meth:`first` and then, for every further iteration, with :meth:`again`.

    Args:
        pose: shape of a parent's pose.
        scale_agreement: divide agreements by sqrt(D), where the algorithm has agreements.
    """

    def __init__(self, pose: PoseShape, *, scale_agreement: bool = True) -> None:
        super().__init__()
        self.pose = pose
        self.scale = pose.size**-0.5 if scale_agreement else 1.0

    @abstractmethod
    def first(self, votes: Votes) -> Tensor:
        """Return parent poses (J, Q, C, B, H', W') when nothing is known of the parents yet."""

    @abstractmethod
    def again(self, votes: Votes, parents: Tensor) -> Tensor:
        """Return new parent poses (J, Q, C, B, H', W') given those of the pass before."""


class PoseNorm(nn.LayerNorm):
    """LayerNorm over the D numbers of each pose, for poses (J, Q, C, B, H, W)."""

    def __init__(self, pose: PoseShape) -> None:
        super().__init__([pose.rows, pose.columns])

    def forward(self, poses: Tensor) -> Tensor:
        """Normalise poses (J, Q, C, B, H, W) over (Q, C); the result is a view whose Q and C are innermost."""
        normalized = super().forward(poses.permute(0, 3, 4, 5, 1, 2))
        return normalized.permute(0, 4, 5, 1, 2, 3)
