"""In which order the capsule layers of a network are routed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from overlaycaps.routing.base import Votes


class RoutedLayer(Protocol):
    """What a schedule needs of a capsule layer."""

    def vote(self, poses: Tensor) -> Votes:
        """Return the votes of the poses below."""

    def route(self, votes: Votes, parents: Tensor | None = None) -> Tensor:
        """Return the layer's poses: the first pass without ``parents``, a later one with."""


def route_concurrently(layers: Sequence[RoutedLayer], primary: Tensor, iterations: int) -> Tensor:
    """Sweep the layers once in order, then update all of them at once ``iterations - 1`` times.

    In pass p > 1 every layer sees the states of pass p-1, its children's as well as its own. A state of a layer that
    lies m layers below the class capsules reaches them m passes later, so its passes after ``iterations - m`` cannot
    change the result; they are not computed. With two iterations and two layers this leaves one pass of agreement, in
    the class capsules; the layer below them stays with equal coefficients. Exact, in forward and backward.

    Args:
        layers: capsule layers, from the one above the primary capsules to the class capsules.
        primary: poses of the primary capsules, (I, R, C, B, H, W).
        iterations: passes in all, at least 1.

    Returns:
        Poses of the last layer, (J, Q, C, B, H, W).

    Source: procedure 1, "concurrent routing", in Tsai et al. 2020 (arXiv 2002.04764).
    """
    states: list[Tensor] = []
    votes: list[Votes] = []
    for layer in layers:
        votes.append(layer.vote(states[-1] if states else primary))
        states.append(layer.route(votes[-1]))
    for number in range(2, iterations + 1):
        first_needed = max(0, len(layers) - (iterations - number + 1))
        if number > 2:
            # The primary capsules never change, nor do the votes of the first layer.
            for index in range(max(1, first_needed), len(layers)):
                votes[index] = layers[index].vote(states[index - 1])
        states[first_needed:] = [
            layers[index].route(votes[index], states[index]) for index in range(first_needed, len(layers))
        ]
    return states[-1]
