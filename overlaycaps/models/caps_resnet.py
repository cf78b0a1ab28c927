"""Capsules on a residual backbone: the network whose CIFAR results the attention routing paper is known for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig
from overlaycaps.errors import UsageError
from overlaycaps.models.base import LayerInfo, OverlayModel, describe_layer
from overlaycaps.models.caps import choose_routing, read_classes
from overlaycaps.models.layers import CapsuleLayer, PrimaryCapsules, scale_pixels
from overlaycaps.models.resnet import make_stage
from overlaycaps.routing import SCHEDULES
from overlaycaps.routing.base import PoseShape
from overlaycaps.routing.schedule import Schedule

_NUM_CAPSULES = 32
_STEM_CHANNELS, _BACKBONE_CHANNELS = 64, 128


class CapsResNet(OverlayModel):
    """Residual backbone, 32 primary capsules a position, two layers of convolutional capsules, class capsules.

    The backbone is conv 3x3 (64), three basic blocks of 64 channels, four of 128, the first of them with stride 2. The
    primary capsules are a 1x1 convolution without bias and a LayerNorm; then capsules 3x3 with stride 2, capsules 3x3,
    where ``hidden_capsules`` is given that many fully connected capsules, and the class capsules. Poses are matrices;
    all class capsules are read by one Linear(d, 1). Routing, its iterations, schedule and options are the
    configuration's; of its sizes, pose size, canvas and number of classes matter.

    Args:
        config: with a square pose size; ``pose`` is ``matrix``.
        image_channels: of the images.
        hidden_capsules: capsules of a further fully connected layer before the classes; none without.

    Source: Tsai et al. 2020 (arXiv 2002.04764) and the configurations released for CIFAR-10 and CIFAR-100.
    Differs from them: no dropout, and its training is this project's.
    """

    def __init__(self, config: CapsuleConfig, image_channels: int = 1, hidden_capsules: int | None = None) -> None:
        super().__init__(config)
        side = math.isqrt(config.pose_size)
        pose = PoseShape(side, side)
        routing_class, make_routing = choose_routing(config)
        self.iterations = config.iterations if routing_class.is_iterative else 1
        self.schedule: Schedule = SCHEDULES[config.schedule].load()
        self.stem = nn.Conv2d(image_channels, _STEM_CHANNELS, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(_STEM_CHANNELS)
        self.stage1 = make_stage(3, _STEM_CHANNELS, _STEM_CHANNELS, stride_px=1)
        self.stage2 = make_stage(4, _STEM_CHANNELS, _BACKBONE_CHANNELS, stride_px=2)
        self.primary = PrimaryCapsules(
            _BACKBONE_CHANNELS,
            _NUM_CAPSULES,
            pose,
            kernel_px=1,
            stride_px=1,
            with_activations=routing_class.uses_activations,
        )
        # The backbone halves the canvas as the overlay network's first convolution does, and two 3x3 layers follow with
        # the same steps; so the configuration's sizes in pixels hold here too.
        self.conv_capsules1 = CapsuleLayer(_NUM_CAPSULES, _NUM_CAPSULES, pose, 3, make_routing, stride_px=2)
        self.conv_capsules2 = CapsuleLayer(_NUM_CAPSULES, _NUM_CAPSULES, pose, 3, make_routing)
        num_in, kernel_px = _NUM_CAPSULES, config.grid_px
        self.hidden_capsules: CapsuleLayer | None = None
        if hidden_capsules is not None:
            self.hidden_capsules = CapsuleLayer(num_in, hidden_capsules, pose, kernel_px, make_routing)
            num_in, kernel_px = hidden_capsules, 1
        self.class_capsules = CapsuleLayer(num_in, config.num_classes, pose, kernel_px, make_routing)
        self.head = nn.Linear(config.pose_size, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) or (B, image_channels, H, W) -> logits (B, num_classes)."""
        maps = torch.relu(self.stem_norm(self.stem(scale_pixels(images))))
        primary = self.primary(self.stage2(self.stage1(maps)))
        hidden = [] if self.hidden_capsules is None else [self.hidden_capsules]
        layers = [self.conv_capsules1, self.conv_capsules2, *hidden, self.class_capsules]
        return read_classes(self.schedule(layers, primary, self.iterations), self.head)

    def describe_routing(self) -> dict[str, Any]:
        """Return pose, routing and iterations."""
        return {"pose": "matrix", "routing": self.config.routing, "routing_iterations": self.iterations}

    def describe_layers(self) -> list[LayerInfo]:
        """Return the layers with their shapes, neurons and parameters."""
        c = self.config
        width = _NUM_CAPSULES * c.pose_size
        layers = [
            describe_layer("conv 3x3", (_STEM_CHANNELS, c.canvas_px, c.canvas_px), self.stem, self.stem_norm),
            describe_layer("3 basic blocks", (_STEM_CHANNELS, c.canvas_px, c.canvas_px), self.stage1),
            describe_layer("4 basic blocks / stride 2", (_BACKBONE_CHANNELS, c.stem_px, c.stem_px), self.stage2),
            describe_layer("primary 1x1", (width, c.stem_px, c.stem_px), self.primary),
            describe_layer("hidden 3x3 / stride 2", (width, c.primary_px, c.primary_px), self.conv_capsules1),
            describe_layer("hidden 3x3", (width, c.grid_px, c.grid_px), self.conv_capsules2),
        ]
        if self.hidden_capsules is not None:
            number = self.hidden_capsules.weight.shape[1]
            layers.append(describe_layer("hidden fully connected", (number, c.pose_size), self.hidden_capsules))
        return [
            *layers,
            describe_layer("fully connected", (c.num_classes, c.pose_size), self.class_capsules),
            describe_layer("logits", (c.num_classes,), self.head),
        ]


def build(config: CapsuleConfig) -> CapsResNet:
    """The network for overlays: one image channel, 32 capsules whatever the size, matrix poses of the configuration."""
    return CapsResNet(replace(config, num_channels=_STEM_CHANNELS, num_capsules=_NUM_CAPSULES, pose="matrix"))


def build_for_images(
    image_channels: int,
    image_px: int,
    num_classes: int,
    pose_size: int,
    hidden_capsules: int | None = None,
    *,
    routing: str = "attention",
    iterations: int = 2,
) -> CapsResNet:
    """Build the network for any square images; it still reads one independent logit per class.

    The released forms: CIFAR-10 is (3, 32, 10, 16), with 1,828,817 parameters; CIFAR-100 is (3, 32, 100, 36, 20), with
    2,799,629.

    Args:
        image_channels: of the images.
        image_px: height and width of the images, at least 13.
        num_classes: class capsules.
        pose_size: numbers in a pose, a square number.
        hidden_capsules: capsules of a fully connected layer before the class capsules; none without.
        routing: a name in the table of routings.
        iterations: routing passes.

    Raises:
        UsageError: if a size does not fit, or there is no such routing.
    """
    for name, number in (("image_channels", image_channels), ("hidden_capsules", hidden_capsules)):
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1.")
    config = CapsuleConfig(
        num_channels=_STEM_CHANNELS,
        num_capsules=_NUM_CAPSULES,
        pose_size=pose_size,
        pose="matrix",
        routing=routing,
        iterations=iterations,
        canvas_px=image_px,
        num_classes=num_classes,
    )
    return CapsResNet(config, image_channels, hidden_capsules)
