"""The layers that capsule networks are made of.

Between layers, poses lie as (n, R, C, B, H, W): capsule, rows and columns of the pose, then batch and space innermost,
so that everything a routed pass does to a pose runs along contiguous positions. For the letters, see the legend in
:mod:`overlaycaps.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from overlaycaps.routing.base import Capsules, PoseNorm, PoseShape, Routing, Votes

RoutingFactory = Callable[[PoseShape, int, int], Routing]
"""From pose, number of children and number of parents to a routing."""


def scale_pixels(images: Tensor) -> Tensor:
    """Images (B, H, W) or (B, channels, H, W), uint8 or already float, to float in [0, 1], (B, channels, H, W)."""
    if images.dim() == 3:
        images = images.unsqueeze(1)
    return images / 255 if images.dtype == torch.uint8 else images


def use_channels_last(model: nn.Module) -> None:
    """Lay the filters of all convolutions out with channels innermost; images and maps then follow.

    It is the layout in which torch's convolutions are fastest on processors with wide vectors or matrix units. Values
    and state keys stay as they are. Transformation matrices have four axes too, but are no filters.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class PrimaryCapsules(nn.Module):
    """Convolution without bias, read as ``num_capsules`` poses a position, then LayerNorm.

    Args:
        num_channels: input channels.
        num_capsules: capsules n at each position.
        pose: shape of a pose.
        kernel_px: height and width of the kernel; no padding.
        stride_px: step of the kernel.
        with_activations: also learn an activation for each capsule, by a convolution of the same shape and a logistic
            function, for routings that need one.

    Source: Tsai et al. 2020 (arXiv 2002.04764); activations: Hinton et al. 2018 (ICLR 2018).
    """

    def __init__(
        self,
        num_channels: int,
        num_capsules: int,
        pose: PoseShape,
        kernel_px: int = 3,
        stride_px: int = 2,
        *,
        with_activations: bool = False,
    ) -> None:
        super().__init__()
        self.num_capsules, self.pose = num_capsules, pose
        self.conv = nn.Conv2d(num_channels, num_capsules * pose.size, kernel_px, stride_px, bias=False)
        self.norm = PoseNorm(pose)
        self.activation = nn.Conv2d(num_channels, num_capsules, kernel_px, stride_px) if with_activations else None

    def forward(self, features: Tensor) -> Capsules:
        """Features (B, channels, H, W) -> capsules with poses (n, R, C, B, H', W')."""
        maps: Tensor = self.conv(features)
        poses = maps.unflatten(1, (self.num_capsules, self.pose.rows, self.pose.columns))
        normalized: Tensor = self.norm(poses.permute(1, 2, 3, 0, 4, 5))
        if self.activation is None:
            return Capsules(normalized)
        return Capsules(normalized, torch.sigmoid(self.activation(features)).transpose(0, 1))


class CapsuleLayer(nn.Module):
    r"""Convolutional capsules; with a kernel as large as its input, fully connected capsules.

    The children of a parent are the ``num_in`` capsules at each of the kernel's k x k positions, I = num_in k^2. Child
    i votes :math:`V_{ij} = W_{ij} P_i` for the pose of parent j; what becomes of the votes is the routing's business.
    The matrices :math:`W_{ij}` are R x R and shared over the positions of the layer, as in a convolution.

    Args:
        num_in: capsules at each position below.
        num_out: capsules J at each position of this layer.
        pose: shape of a pose, the same below and here.
        kernel_px: height and width k of the kernel; no padding.
        make_routing: from pose, number of children I and number of parents J to a routing.
        stride_px: step of the kernel.

    Initial weights are normal with variance J / (R I), which is the released code's.

    Source: Tsai et al. 2020 (arXiv 2002.04764), procedure 1.
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        pose: PoseShape,
        kernel_px: int,
        make_routing: RoutingFactory,
        stride_px: int = 1,
    ) -> None:
        super().__init__()
        self.kernel_px, self.stride_px = kernel_px, stride_px
        num_children = num_in * kernel_px**2
        self.weight = nn.Parameter(torch.empty(num_children, num_out, pose.rows, pose.rows))
        nn.init.normal_(self.weight, std=(num_out / (pose.rows * num_children)) ** 0.5)
        self.routing = make_routing(pose, num_children, num_out)

    def vote(self, below: Capsules) -> Votes:
        """Return the votes of the capsules below, whose poses are (n, R, C, B, H, W)."""
        return Votes(below, self.weight, self.kernel_px, self.stride_px)

    def route(self, votes: Votes, parents: Capsules | None = None, number: int = 1) -> Capsules:
        """Make one pass: votes -> capsules of this layer, poses (J, R, C, B, H', W').

        Args:
            votes: from :meth:`vote`.
            parents: the capsules after the pass before; none in the first pass.
            number: of the pass.
        """
        return self.routing.first(votes) if parents is None else self.routing.again(votes, parents, number)
