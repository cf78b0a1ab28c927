"""What every model of the comparison is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from overlaycaps.config import CapsuleConfig


@dataclass(frozen=True)
class LayerInfo:
    """One layer of a model, for the matching table.

    Attributes:
        layer: what the layer does.
        shape: of its output, without the batch.
        neurons: numbers in the output.
        parameters: trainable numbers.
    """

    layer: str
    shape: tuple[int, ...]
    neurons: int
    parameters: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data, as JSON has them."""
        return {**asdict(self), "shape": list(self.shape)}


class OverlayModel(nn.Module, ABC):
    """Reads images (B, H, W) uint8 into one logit per class (B, num_classes); the logits are independent."""

    def __init__(self, config: CapsuleConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, num_classes) for images (B, H, W) or (B, 1, H, W)."""

    @abstractmethod
    def describe_layers(self) -> list[LayerInfo]:
        """Return the layers in order; their parameters add up to the model's."""

    def describe_routing(self) -> dict[str, Any]:
        """Return pose, routing and iterations of a capsule model; none of them has a value in a CNN."""
        return {"pose": None, "routing": None, "routing_iterations": None}

    def count_parameters(self) -> int:
        """Return the number of trainable parameters."""
        return count_parameters([self])


def count_parameters(modules: Iterable[nn.Module]) -> int:
    """Return the number of trainable numbers in the modules."""
    return sum(p.numel() for module in modules for p in module.parameters() if p.requires_grad)


def describe_layer(layer: str, shape: tuple[int, ...], *modules: nn.Module) -> LayerInfo:
    """Return the row of a layer whose output has ``shape`` and whose parameters are those of ``modules``."""
    return LayerInfo(layer, shape, math.prod(shape), count_parameters(modules))


def describe_matched_layers(config: CapsuleConfig, modules: Sequence[nn.Module]) -> list[LayerInfo]:
    """Return the rows of the five layers that a capsule network and the CNNs matched to it have in common.

    Args:
        config: the capsule configuration that both are made from.
        modules: what makes up each layer, in order.
    """
    c = config
    width = c.num_capsules * c.pose_size
    layers: list[tuple[str, tuple[int, ...]]] = [
        ("conv 3x3 / stride 2", (c.num_channels, c.stem_px, c.stem_px)),
        ("primary 3x3 / stride 2", (width, c.primary_px, c.primary_px)),
        ("hidden 3x3", (width, c.grid_px, c.grid_px)),
        ("fully connected", (c.num_classes, c.pose_size)),
        ("logits", (c.num_classes,)),
    ]
    return [describe_layer(name, shape, module) for (name, shape), module in zip(layers, modules, strict=True)]
