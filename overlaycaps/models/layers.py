"""The layers that capsule networks are made of.

Between layers, poses lie as (n, R, C, B, H, W): capsule, rows and columns of the pose, then batch and space innermost,
so that everything a routed pass does to a pose runs along contiguous positions. For the letters, see the legend in
:mod:`overlaycaps.kernels`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overlaycaps.routing.base import PoseNorm, PoseShape, Routing, Votes


def scale_pixels(images: Tensor) -> Tensor:
    """Images (B, H, W) or (B, 1, H, W), uint8 or already float, to float in [0, 1], (B, 1, H, W)."""
    if images.dim() == 3:
        images = images.unsqueeze(1)
    return images / 255 if images.dtype == torch.uint8 else images


class PrimaryCapsules(nn.Module):
    """Convolution 3x3, stride 2, no padding, no bias, read as ``num_capsules`` poses a position, then LayerNorm.

    Args:
        num_channels: input channels.
        num_capsules: capsules n at each position.
        pose: shape of a pose.

    Source: Tsai et al. 2020 (arXiv 2002.04764), section 3.
    """

    def __init__(self, num_channels: int, num_capsules: int, pose: PoseShape) -> None:
        super().__init__()
        self.num_capsules, self.pose = num_capsules, pose
        self.conv = nn.Conv2d(num_channels, num_capsules * pose.size, kernel_size=3, stride=2, bias=False)
        self.norm = PoseNorm(pose)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, channels, H, W) -> poses (n, R, C, B, H', W')."""
        maps: Tensor = self.conv(features)
        poses = maps.unflatten(1, (self.num_capsules, self.pose.rows, self.pose.columns))
        normalized: Tensor = self.norm(poses.permute(1, 2, 3, 0, 4, 5))
        return normalized


class CapsuleLayer(nn.Module):
    r"""Convolutional capsules; with a kernel as large as its input, fully connected capsules.

    The children of a parent are the ``num_in`` capsules at each of the kernel's k x k positions, I = num_in k^2. Child
    i votes :math:`V_{ij} = W_{ij} P_i` for the pose of parent j; the votes' weighted sum is the routing's business.
    The matrices :math:`W_{ij}` are R x R and shared over the positions of the layer, as in a convolution.

    Args:
        num_in: capsules at each position below.
        num_out: capsules J at each position of this layer.
        pose: shape of a pose, the same below and here.
        kernel_px: height and width k of the kernel; no padding.
        routing: turns votes into poses; with what it learns.
        stride_px: step of the kernel.

    Initial weights are normal with variance J / (R I), which is the released code's.

    Source: Tsai et al. 2020 (arXiv 2002.04764), section 3 and procedure 1.
    """

    def __init__(
        self, num_in: int, num_out: int, pose: PoseShape, kernel_px: int, routing: Routing, stride_px: int = 1
    ) -> None:
        super().__init__()
        self.num_out, self.pose, self.kernel_px, self.stride_px = num_out, pose, kernel_px, stride_px
        self.num_children = num_in * kernel_px**2
        self.weight = nn.Parameter(torch.empty(self.num_children, num_out, pose.rows, pose.rows))
        nn.init.normal_(self.weight, std=(num_out / (pose.rows * self.num_children)) ** 0.5)
        self.routing = routing

    def vote(self, poses: Tensor) -> Votes:
        """Return the votes of the layer below, whose poses are (n, R, C, B, H, W)."""
        return Votes(poses, self.weight, self.kernel_px, self.stride_px)

    def route(self, votes: Votes, parents: Tensor | None = None) -> Tensor:
        """One pass: votes -> poses of this layer (J, R, C, B, H', W').

        Args:
            votes: from :meth:`vote`.
            parents: poses of the pass before; none in the first pass.
        """
        return self.routing.first(votes) if parents is None else self.routing.again(votes, parents)
