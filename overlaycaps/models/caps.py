"""Capsule networks with inverted dot-product attention routing, of the overlay experiment."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_layer
from overlaycaps.models.layers import CapsuleLayer, PrimaryCapsules, scale_pixels
from overlaycaps.routing import ROUTINGS
from overlaycaps.routing.base import PoseShape, Routing
from overlaycaps.routing.schedule import route_concurrently


class CapsuleNet(OverlayModel):
    """Convolution, primary capsules, convolutional capsules, class capsules, one linear reading of each class capsule.

    All class capsules are read by the same Linear(d, 1), so a class is told by its pose alone.

    Source: Tsai et al. 2020 (arXiv 2002.04764), section 3. The sizes of the overlay experiment were not released; the
    parameter counts of this architecture round to those of the paper's table.
    """

    def __init__(self, config: CapsuleConfig) -> None:
        super().__init__(config)
        side = math.isqrt(config.pose_size)
        pose = PoseShape(side, side) if config.pose == "matrix" else PoseShape(config.pose_size, 1)
        number = config.num_capsules

        def make_routing() -> Routing:
            routing: Routing = ROUTINGS[config.routing].load()(pose, scale_agreement=config.scale_agreement)
            return routing

        self.stem = nn.Conv2d(1, config.num_channels, kernel_size=3, stride=2, padding=1)
        self.primary = PrimaryCapsules(config.num_channels, number, pose)
        self.conv_capsules = CapsuleLayer(number, number, pose, kernel_px=3, routing=make_routing())
        self.class_capsules = CapsuleLayer(
            number, config.num_classes, pose, kernel_px=config.grid_px, routing=make_routing()
        )
        self.head = nn.Linear(config.pose_size, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, 1, H, W) -> logits (B, num_classes)."""
        features = torch.relu(self.stem(scale_pixels(images)))
        classes = route_concurrently(
            [self.conv_capsules, self.class_capsules], self.primary(features), self.config.iterations
        )
        poses = classes.flatten(1, 2).flatten(2).permute(2, 0, 1)  # (classes, D, B) -> (B, classes, D)
        logits: Tensor = self.head(poses).squeeze(-1)
        return logits

    def describe_routing(self) -> dict[str, Any]:
        """Return pose, routing and iterations."""
        c = self.config
        return {"pose": c.pose, "routing": c.routing, "routing_iterations": c.iterations}

    def describe_layers(self) -> list[LayerInfo]:
        """Return the five layers with their shapes, neurons and parameters."""
        c = self.config
        width = c.num_capsules * c.pose_size
        return [
            describe_layer("conv 3x3 / stride 2", (c.num_channels, c.stem_px, c.stem_px), self.stem),
            describe_layer("primary 3x3 / stride 2", (width, c.primary_px, c.primary_px), self.primary),
            describe_layer("hidden 3x3", (width, c.grid_px, c.grid_px), self.conv_capsules),
            describe_layer("fully connected", (c.num_classes, c.pose_size), self.class_capsules),
            describe_layer("logits", (c.num_classes,), self.head),
        ]


def build_vector(config: CapsuleConfig) -> CapsuleNet:
    """Capsules whose pose is a vector of d numbers; a vote is a d x d matrix times it."""
    return CapsuleNet(replace(config, pose="vector"))


def build_matrix(config: CapsuleConfig) -> CapsuleNet:
    """Capsules whose pose is a sqrt(d) x sqrt(d) matrix; a vote is such a matrix times it."""
    return CapsuleNet(replace(config, pose="matrix"))
