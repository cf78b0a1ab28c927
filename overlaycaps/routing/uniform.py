"""Uniform routing: the control that every comparison of routings should have."""

from __future__ import annotations

from overlaycaps.routing.attention import AttentionRouting
from overlaycaps.routing.base import Capsules, Votes


class UniformRouting(AttentionRouting):
    r"""Equal coefficients in every pass: :math:`P_j = \mathrm{LayerNorm}\big(\frac1J \sum_i V_{ij}\big)`.

    Equal to attention with one iteration. The coefficients of each child sum to 1 over the parents.

    Source: the control in Paik et al. 2019 (arXiv 1907.13327), which found it to do as well as routing.
    """

    is_iterative = False

    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """As :meth:`first`: what the parents were changes nothing."""
        return self.first(votes)
