"""CNN baselines with the layers and the neurons per layer of a capsule network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_matched_layers
from overlaycaps.models.layers import scale_pixels


class MatchedCnn(OverlayModel):
    """Conv C, conv n d, conv n d, FC 10 d, FC 10, with ReLU between: a capsule network's layers, made of neurons.

    Args:
        config: of the capsule network to match; its pose and routing do not matter here.
        pool: average the last feature map over space before the fully connected layers, instead of flattening it.

    Source: the baseline of Tsai et al. 2020 (arXiv 2002.04764): same layers, same neurons per layer.
    """

    def __init__(self, config: CapsuleConfig, *, pool: bool) -> None:
        super().__init__(config)
        self.pool = pool
        width = config.num_capsules * config.pose_size
        features = width if pool else width * config.grid_px**2
        self.stem = nn.Conv2d(1, config.num_channels, kernel_size=3, stride=2, padding=1)
        self.primary = nn.Conv2d(config.num_channels, width, kernel_size=3, stride=2)
        self.hidden = nn.Conv2d(width, width, kernel_size=3)
        self.connected = nn.Linear(features, config.num_classes * config.pose_size)
        self.head = nn.Linear(config.num_classes * config.pose_size, config.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, 1, H, W) -> logits (B, num_classes)."""
        maps = torch.relu_(self.stem(scale_pixels(images)))
        maps = torch.relu_(self.primary(maps))
        maps = torch.relu_(self.hidden(maps))
        features = maps.mean((2, 3)) if self.pool else maps.flatten(1)
        logits: Tensor = self.head(torch.relu_(self.connected(features)))
        return logits

    def describe_layers(self) -> list[LayerInfo]:
        """Return the five layers with their shapes, neurons and parameters."""
        modules = (self.stem, self.primary, self.hidden, self.connected, self.head)
        return describe_matched_layers(self.config, modules)


def build_flat(config: CapsuleConfig) -> MatchedCnn:
    """The baseline that flattens its last feature map: about as many parameters as vector capsules."""
    return MatchedCnn(config, pool=False)


def build_pooled(config: CapsuleConfig) -> MatchedCnn:
    """The baseline that averages its last feature map over space: position is lost, parameters are saved."""
    return MatchedCnn(config, pool=True)
