"""Efficient-CapsNet, a small capsule network with self-attention routing, as published for MultiMNIST."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.errors import UsageError
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_layer
from overlaycaps.models.layers import scale_pixels

# Channels, kernel and stride of the four convolutions, none padded.
_CONVOLUTIONS = ((32, 5, 1), (64, 3, 1), (64, 3, 2), (128, 3, 2))
_PRIMARY_KERNEL_PX, _PRIMARY_STRIDE_PX = 5, 2
_NUM_PRIMARY, _PRIMARY_SIZE = 16, 8
_CLASS_SIZE = 16
# Added to squared lengths: the shortest length read is 3e-4, and a pose of zeros has a gradient.
_EPSILON = 1e-7


class ConvNorm(nn.Module):
    """Convolution without padding, ReLU, then BatchNorm, in this order; BatchNorm as Keras has it by default."""

    def __init__(self, num_in: int, num_out: int, kernel_px: int, stride_px: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_in, num_out, kernel_px, stride_px)
        self.norm = nn.BatchNorm2d(num_out, eps=1e-3, momentum=0.01)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        assert self.conv.bias is not None  # for the type checker
        nn.init.zeros_(self.conv.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, num_in, H, W) -> (B, num_out, H', W')."""
        normalized: Tensor = self.norm(torch.relu(self.conv(maps)))
        return normalized


class DepthwisePrimary(nn.Module):
    """Primary capsules: a depthwise convolution that covers its input, read as 16 poses of 8, squashed.

    Source: Mazzia et al. 2021 (arXiv 2101.12491); strides and kernels: the released code for MultiMNIST.
    """

    def __init__(self) -> None:
        super().__init__()
        channels = _NUM_PRIMARY * _PRIMARY_SIZE
        self.conv = nn.Conv2d(channels, channels, _PRIMARY_KERNEL_PX, _PRIMARY_STRIDE_PX, groups=channels)
        nn.init.xavier_uniform_(self.conv.weight)
        assert self.conv.bias is not None  # for the type checker
        nn.init.zeros_(self.conv.bias)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, 128, H, W), reduced to one position -> poses (B, 16, 8)."""
        return squash(self.conv(maps).view(-1, _NUM_PRIMARY, _PRIMARY_SIZE))


class SelfAttentionCapsules(nn.Module):
    """Fully connected capsules: votes by a matrix for each child and parent, routed by :func:`attend`.

    Args:
        num_in: children I.
        num_out: parents J.
        size_in: numbers R in a child's pose.
        size_out: numbers Q in a parent's pose.

    Source: Mazzia et al. 2021 (arXiv 2101.12491); initial weights: the released code.
    """

    def __init__(self, num_in: int, num_out: int, size_in: int, size_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_in, num_out, size_out, size_in))
        # He normal with the fan-in that Keras finds in weights (J, I, R, Q): all axes but the last.
        nn.init.normal_(self.weight, std=(2 / (num_in * num_out * size_in)) ** 0.5)
        # One axis, so that no weight decay pulls at it: optimisers know a bias by that.
        self.prior_bias = nn.Parameter(torch.zeros(num_in * num_out))

    def forward(self, poses: Tensor) -> Tensor:
        """Poses (B, I, R) -> the parents' poses before squashing (B, J, Q)."""
        votes = torch.einsum("bir,ijqr->bijq", poses, self.weight)
        return attend(votes, self.prior_bias.view(self.weight.shape[:2]))


class EfficientCapsNet(OverlayModel):
    r"""Four convolutions, depthwise primary capsules 16 of 8, class capsules of 16 by self-attention routing.

    The published model reads the length of each class capsule, which lies between 0 and 1, and trains it with a margin
    loss beside a decoder that redraws the digits. Here, as with every model, class j has a logit and the loss is the
    binary cross-entropy: the logit is the one whose probability is the length,

    .. math::

        \mathrm{logit}_j = \log\frac{|v_j|}{1 - |v_j|} = \log(e^{|s_j|} - 1), \quad |v_j| = 1 - e^{-|s_j|}

    so a class is predicted where its capsule is longer than 0.5. Lengths are at least 3e-4, as in the released code,
    which keeps logits above -8.1. The decoder is left out; it is not among the published parameters either.

    The published canvas is 36 px; the strides leave one position, and with it the published parameters, from 29 to
    36 px. Of the configuration only the canvas and the number of classes matter; the network is the same at every size.

    Source: Mazzia et al. 2021 (arXiv 2101.12491) and its released code, the variant for MultiMNIST.

    Raises:
        UsageError: if the canvas is not one of those.
    """

    def __init__(self, config: CapsuleConfig) -> None:
        super().__init__(config)
        smallest_px = _grow(1, _PRIMARY_KERNEL_PX, _PRIMARY_STRIDE_PX)
        largest_px = smallest_px + _PRIMARY_STRIDE_PX - 1
        for _, kernel_px, stride_px in reversed(_CONVOLUTIONS):
            smallest_px = _grow(smallest_px, kernel_px, stride_px)
            largest_px = _grow(largest_px, kernel_px, stride_px) + stride_px - 1
        if not smallest_px <= config.canvas_px <= largest_px:
            raise UsageError(
                f"efficient-capsnet takes images of {smallest_px} to {largest_px} px (published for {largest_px}), not "
                f"of {config.canvas_px} px; choose another model or another canvas."
            )
        self.convolutions = nn.Sequential()
        channels = 1
        for num_out, kernel_px, stride_px in _CONVOLUTIONS:
            self.convolutions.append(ConvNorm(channels, num_out, kernel_px, stride_px))
            channels = num_out
        self.primary = DepthwisePrimary()
        self.class_capsules = SelfAttentionCapsules(_NUM_PRIMARY, config.num_classes, _PRIMARY_SIZE, _CLASS_SIZE)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, 1, H, W) -> logits (B, num_classes)."""
        primary = self.primary(self.convolutions(scale_pixels(images)))
        return read_lengths(self.class_capsules(primary))

    def describe_routing(self) -> dict[str, Any]:
        """Return pose, routing and iterations, which are the published ones whatever the configuration says."""
        return {"pose": "vector", "routing": "self-attention", "routing_iterations": 1}

    def describe_layers(self) -> list[LayerInfo]:
        """Return the four convolutions, the two capsule layers and the logits, which have no parameters."""
        side = self.config.canvas_px
        layers = []
        for (channels, kernel_px, stride_px), module in zip(_CONVOLUTIONS, self.convolutions, strict=True):
            side = (side - kernel_px) // stride_px + 1
            step = f" / stride {stride_px}" if stride_px > 1 else ""
            layers.append(describe_layer(f"conv {kernel_px}x{kernel_px}{step}", (channels, side, side), module))
        primary = f"primary depthwise {_PRIMARY_KERNEL_PX}x{_PRIMARY_KERNEL_PX} / stride {_PRIMARY_STRIDE_PX}"
        number = self.config.num_classes
        return [
            *layers,
            describe_layer(primary, (_NUM_PRIMARY, _PRIMARY_SIZE), self.primary),
            describe_layer("fully connected", (number, _CLASS_SIZE), self.class_capsules),
            describe_layer("logits", (number,)),
        ]


def attend(votes: Tensor, log_prior: Tensor) -> Tensor:
    r"""Route by self-attention; the coefficients of each child sum to 1 over the parents, before the priors.

    .. math::

        a_{ij} = \frac{1}{\sqrt Q} \sum_{i'} \langle u_{ij}, u_{i'j} \rangle, \quad
        s_j = \sum_i \big(\mathrm{softmax}_j(a_{ij}) + b_{ij}\big) u_{ij}

    Args:
        votes: u, (B, I, J, Q).
        log_prior: b, (I, J).

    Returns:
        s, the parents' poses before squashing, (B, J, Q).

    Source: Mazzia et al. 2021 (arXiv 2101.12491).
    """
    agreement = torch.einsum("bijq,bkjq->bij", votes, votes) / votes.shape[-1] ** 0.5
    coefficients = torch.softmax(agreement, dim=2) + log_prior
    return torch.einsum("bij,bijq->bjq", coefficients, votes)


def squash(poses: Tensor) -> Tensor:
    r"""Return :math:`\big(1 - e^{-|s|}\big) \frac{s}{|s|}` for poses s (..., D).

    Source: Mazzia et al. 2021 (arXiv 2101.12491).
    """
    length = _measure(poses).unsqueeze(-1)
    return poses * (-torch.expm1(-length) / length)


def read_lengths(poses: Tensor) -> Tensor:
    r"""Return the logit of the length that poses s (..., D) have once squashed, :math:`\log(e^{|s|} - 1)`, (...).

    It is computed from \|s\|, not from the squashed length: near 1 the latter has no digits left, and clamping it would
    take the gradient from the most wrong answers.
    """
    length = _measure(poses)
    return length + torch.log(-torch.expm1(-length))


def _measure(poses: Tensor) -> Tensor:
    return (poses.square().sum(-1) + _EPSILON).sqrt()


def _grow(size_px: int, kernel_px: int, stride_px: int) -> int:
    """Return the smallest input whose convolution has ``size_px`` positions a side."""
    return (size_px - 1) * stride_px + kernel_px


def build(config: CapsuleConfig) -> EfficientCapsNet:
    """Efficient-CapsNet as published; neither the size nor the routing of the configuration changes it."""
    channels = _CONVOLUTIONS[0][0]
    return EfficientCapsNet(
        replace(config, num_channels=channels, num_capsules=_NUM_PRIMARY, pose_size=_CLASS_SIZE, pose="vector")
    )
