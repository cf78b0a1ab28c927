"""Capsule networks with inverted dot-product attention routing, of the overlay experiment."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.errors import UsageError
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_matched_layers
from overlaycaps.models.layers import CapsuleLayer, PrimaryCapsules, RoutingFactory, scale_pixels
from overlaycaps.routing import ROUTINGS, SCHEDULES
from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions
from overlaycaps.routing.schedule import Schedule


class CapsuleNet(OverlayModel):
    """Convolution, primary capsules, convolutional capsules, class capsules, one linear reading of each class capsule.

    All class capsules are read by the same Linear(d, 1), so a class is told by its pose alone.

    Source: Tsai et al. 2020 (arXiv 2002.04764). The sizes of the overlay experiment were not released; the
    parameter counts of this architecture round to those of the paper's table.
    """

    def __init__(self, config: CapsuleConfig) -> None:
        super().__init__(config)
        side = math.isqrt(config.pose_size)
        pose = PoseShape(side, side) if config.pose == "matrix" else PoseShape(config.pose_size, 1)
        number = config.num_capsules

        routing_class, make_routing = choose_routing(config)
        self.iterations = config.iterations if routing_class.is_iterative else 1
        self.schedule: Schedule = SCHEDULES[config.schedule].load()
        self.stem = nn.Conv2d(1, config.num_channels, kernel_size=3, stride=2, padding=1)
        self.primary = PrimaryCapsules(
            config.num_channels, number, pose, with_activations=routing_class.uses_activations
        )
        self.conv_capsules = CapsuleLayer(number, number, pose, 3, make_routing)
        self.class_capsules = CapsuleLayer(number, config.num_classes, pose, config.grid_px, make_routing)
        self.head = nn.Linear(config.pose_size, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, 1, H, W) -> logits (B, num_classes)."""
        features = torch.relu_(self.stem(scale_pixels(images)))
        layers = [self.conv_capsules, self.class_capsules]
        return read_classes(self.schedule(layers, self.primary(features), self.iterations), self.head)

    def describe_routing(self) -> dict[str, Any]:
        """Return pose, routing and iterations."""
        return {"pose": self.config.pose, "routing": self.config.routing, "routing_iterations": self.iterations}

    def describe_layers(self) -> list[LayerInfo]:
        """Return the five layers with their shapes, neurons and parameters."""
        modules = (self.stem, self.primary, self.conv_capsules, self.class_capsules, self.head)
        return describe_matched_layers(self.config, modules)


def choose_routing(config: CapsuleConfig) -> tuple[type[Routing], RoutingFactory]:
    """Return the class of the configured routing, and how a layer makes its own."""
    routing_class: type[Routing] = ROUTINGS[config.routing].load()
    if not (isinstance(routing_class, type) and issubclass(routing_class, Routing)):
        raise UsageError(f"--routing {config.routing} is no routing; it must be a subclass of Routing.")
    options = RoutingOptions(scale_agreement=config.scale_agreement, layer_norm=config.layer_norm)
    return routing_class, lambda pose, num_children, num_parents: routing_class(
        pose, num_children, num_parents, options
    )


def read_classes(classes: Capsules, head: nn.Linear) -> Tensor:
    """Read every class capsule with one Linear(D, 1): poses (classes, Q, C, B, 1, 1) -> logits (B, classes)."""
    poses = classes.pose.flatten(1, 2).flatten(2).permute(2, 0, 1)
    logits: Tensor = head(poses).squeeze(-1)
    return logits


def build_vector(config: CapsuleConfig) -> CapsuleNet:
    """Capsules whose pose is a vector of d numbers; a vote is a d x d matrix times it."""
    return CapsuleNet(replace(config, pose="vector"))


def build_matrix(config: CapsuleConfig) -> CapsuleNet:
    """Capsules whose pose is a sqrt(d) x sqrt(d) matrix; a vote is such a matrix times it."""
    return CapsuleNet(replace(config, pose="matrix"))
