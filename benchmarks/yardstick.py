"""What public implementations of the routing do, as the yardstick of :mod:`benchmarks.routing`.

Every pass of every layer is a pair of three-operand einsums over all votes at once, which lie in memory as a whole,
for the backward pass too; pass 1 is no exception, and every layer is updated in every iteration. Same mathematics,
same parameters, same results as :class:`overlaycaps.models.caps.CapsuleNet` with attention routing and the concurrent
schedule. Letters as in :mod:`overlaycaps.kernels`; x and y are height and width.

The procedure is that of Tsai et al. 2020 (arXiv 2002.04764); no line is taken from any implementation of it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from overlaycaps.models.caps import CapsuleNet
from overlaycaps.models.layers import CapsuleLayer
from overlaycaps.routing.attention import AttentionRouting
from overlaycaps.routing.base import PoseNorm


class Yardstick(nn.Module):
    """The literal network over the parameters of a capsule network of ours.

    Args:
        model: whose parameters are used (shared, not copied); attention routing with layer norm.
    """

    def __init__(self, model: CapsuleNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, H, W) uint8 -> logits (B, classes)."""
        model = self.model
        maps = model.primary.conv(torch.relu(model.stem(images.unsqueeze(1) / 255)))
        pose = model.primary.pose
        poses = maps.unflatten(1, (model.primary.num_capsules, pose.rows, pose.columns))
        primary = _normalize(poses.permute(0, 1, 4, 5, 2, 3), model.primary.norm)  # (B, n, x, y, R, C)

        layers = (model.conv_capsules, model.class_capsules)
        states: list[Tensor] = []
        for layer in layers:
            states.append(_route(layer, states[-1] if states else primary, None))
        for _ in range(model.iterations - 1):
            below = [primary, *states[:-1]]
            states = [_route(layer, child, parent) for layer, child, parent in zip(layers, below, states, strict=True)]
        logits: Tensor = model.head(states[-1].flatten(4).flatten(1, 3)).squeeze(-1)
        return logits


def _route(layer: CapsuleLayer, below: Tensor, parents: Tensor | None) -> Tensor:
    """One pass of one layer: poses (B, n, x, y, R, C) and parents (B, J, x', y', Q, C) -> new parents."""
    kernel, stride = layer.kernel_px, layer.stride_px
    routing = cast(AttentionRouting, layer.routing)
    patches = below.unfold(2, kernel, stride).unfold(3, kernel, stride)  # (B, n, x', y', R, C, k, k)
    children = patches.permute(0, 1, 6, 7, 2, 3, 4, 5).flatten(1, 3)  # (B, I, x', y', R, C)
    num_parents = layer.weight.shape[1]
    if parents is None:
        coefficients = children.new_full((*children.shape[:4], num_parents), 1 / num_parents)
    else:
        agreement = torch.einsum("bixyrc,ijqr,bjxyqc->bixyj", children, layer.weight, parents)
        coefficients = torch.softmax(agreement * routing.scale, dim=-1)
    sums = torch.einsum("bixyrc,ijqr,bixyj->bjxyqc", children, layer.weight, coefficients)
    return _normalize(sums, cast(PoseNorm, routing.norm))


def _normalize(poses: Tensor, norm: PoseNorm) -> Tensor:
    return torch.nn.functional.layer_norm(poses, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
