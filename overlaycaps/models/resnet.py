"""ResNet-18 for small images: a standard CNN to set beside the capsules, without any matching."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_layer
from overlaycaps.models.layers import scale_pixels

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
"""Channels and first stride of each stage."""


class BasicBlock(nn.Module):
    r"""Two 3x3 convolutions around a shortcut: :math:`y = \mathrm{ReLU}(F(x) + S(x))`.

    F is convolution, BatchNorm, ReLU, convolution, BatchNorm. S is the identity; where the block changes the number of
    channels or the size, S is a 1x1 convolution with BatchNorm ("option B"). No convolution has a bias.

    Args:
        num_in: channels of x.
        num_out: channels of y.
        stride_px: step of the first convolution and of the shortcut.

    Source: He et al. 2016 (arXiv 1512.03385), section 3.2 and figure 5 (left).
    """

    def __init__(self, num_in: int, num_out: int, stride_px: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride_px, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.shortcut: nn.Module = nn.Identity()
        self.shortcut_norm: nn.Module = nn.Identity()
        if stride_px != 1 or num_in != num_out:
            self.shortcut = nn.Conv2d(num_in, num_out, 1, stride_px, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(num_out)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (B, num_in, H, W) -> (B, num_out, H / stride, W / stride), rounded up."""
        residual = torch.relu(self.norm1(self.conv1(maps)))
        residual = self.norm2(self.conv2(residual))
        return torch.relu(residual + self.shortcut_norm(self.shortcut(maps)))


def make_stage(num_blocks: int, num_in: int, num_out: int, stride_px: int) -> nn.Sequential:
    """Return basic blocks in a row; the first changes the channels and makes the step."""
    first = BasicBlock(num_in, num_out, stride_px)
    return nn.Sequential(first, *(BasicBlock(num_out, num_out) for _ in range(num_blocks - 1)))


class ResNet18(OverlayModel):
    """Conv 3x3, four stages of two basic blocks with 64, 128, 256 and 512 channels, average over space, Linear.

    The first convolution has stride 1 and no pooling after it, as is usual for small images; the rest is ResNet-18.
    Of the configuration only the canvas and the number of classes matter; the network is the same at every size.

    Source: He et al. 2016 (arXiv 1512.03385), table 1, 18 layers; initial weights of the convolutions: He et al. 2015
    (arXiv 1502.01852), eq. 14.
    """

    def __init__(self, config: CapsuleConfig) -> None:
        super().__init__(config)
        channels = _STAGES[0][0]
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(channels)
        self.stages = nn.Sequential()
        for num_out, stride_px in _STAGES:
            self.stages.append(make_stage(2, channels, num_out, stride_px))
            channels = num_out
        self.head = nn.Linear(channels, config.num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, 1, H, W) -> logits (B, num_classes)."""
        maps = torch.relu(self.stem_norm(self.stem(scale_pixels(images))))
        logits: Tensor = self.head(self.stages(maps).mean((2, 3)))
        return logits

    def describe_layers(self) -> list[LayerInfo]:
        """Return the first convolution, the four stages and the logits."""
        side = self.config.canvas_px
        layers = [describe_layer("conv 3x3", (_STAGES[0][0], side, side), self.stem, self.stem_norm)]
        for (channels, stride_px), stage in zip(_STAGES, self.stages, strict=True):
            side = (side - 1) // stride_px + 1
            step = f" / stride {stride_px}" if stride_px > 1 else ""
            layers.append(describe_layer(f"2 basic blocks{step}", (channels, side, side), stage))
        return [*layers, describe_layer("logits", (self.config.num_classes,), self.head)]


def build(config: CapsuleConfig) -> ResNet18:
    """ResNet-18 with the first convolution of small images; the size of the configuration does not change it."""
    return ResNet18(replace(config, num_channels=_STAGES[0][0]))
