"""In which order the capsule layers of a network are routed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from overlaycaps.routing.base import Capsules, Votes


class RoutedLayer(Protocol):
    """What a schedule needs of a capsule layer."""

    def vote(self, below: Capsules) -> Votes:
        """Return the votes of the capsules below."""

    def route(self, votes: Votes, parents: Capsules | None = None, number: int = 1) -> Capsules:
        """Return the layer's capsules after pass ``number``, given those of the pass before."""


Schedule = Callable[[Sequence[RoutedLayer], Capsules, int], Capsules]
"""From layers, primary capsules and a number of iterations to the capsules of the last layer."""


def route_concurrently(layers: Sequence[RoutedLayer], primary: Capsules, iterations: int) -> Capsules:
    """Sweep the layers once in order, then update all of them at once ``iterations - 1`` times.

    In pass p > 1 every layer sees the states of pass p-1, its children's as well as its own. A state of a layer that
    lies m layers below the class capsules reaches them m passes later, so its passes after ``iterations - m`` cannot
    change the result; they are not computed. With two iterations and two layers this leaves one pass of agreement, in
    the class capsules; the layer below them stays with equal coefficients. Exact, in forward and backward.

    Args:
        layers: capsule layers, from the one above the primary capsules to the class capsules.
        primary: the primary capsules.
        iterations: passes in all, at least 1.

    Returns:
        The capsules of the last layer.

    Source: "concurrent routing" in Tsai et al. 2020 (arXiv 2002.04764).
    """
    states: list[Capsules] = []
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
            layers[index].route(votes[index], states[index], number) for index in range(first_needed, len(layers))
        ]
    return states[-1]


def route_sequentially(layers: Sequence[RoutedLayer], primary: Capsules, iterations: int) -> Capsules:
    """Let each layer make all its passes before the next layer begins.

    Arguments and result as for :func:`route_concurrently`.

    Source: "sequential routing", the ablation in Tsai et al. 2020 (arXiv 2002.04764), and the usual order before it,
    as in Sabour et al. 2017 (arXiv 1710.09829).
    """
    below = primary
    for layer in layers:
        votes = layer.vote(below)
        below = layer.route(votes)
        for number in range(2, iterations + 1):
            below = layer.route(votes, below, number)
    return below
