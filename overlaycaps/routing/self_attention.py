"""Self-attention routing (Mazzia et al. 2021, Efficient-CapsNet, arXiv 2101.12491)."""

from __future__ import annotations

import torch
from torch import nn

from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions, Votes
from overlaycaps.routing.squash import squash_exponentially


class SelfAttentionRouting(Routing):
    r"""Each vote is weighed by its agreement with all votes for the same parent; one pass, no iterations.

    .. math::

        a_{ij} = \frac{1}{\sqrt D} \sum_{i'} \langle V_{ij}, V_{i'j} \rangle, \quad
        c_{ij} = \mathrm{softmax}_j(a_{ij}), \quad
        P_j = \mathrm{squash}\Big(\sum_i (c_{ij} + b_{ij}) V_{ij}\Big)

    with learned log priors b (I, J) and squash(s) = (1 - exp(-|s|)) s/|s|. The coefficients c of each child sum to 1
    over the parents; with the priors they need not. The sum over i' is linear in the votes, so the I x I agreements of
    the paper are never formed: :math:`a_{ij} = \langle \sum_{i'} V_{i'j}, V_{ij} \rangle / \sqrt D`.

    Deviations from the paper: children share their matrices over the positions of a convolutional layer, and the
    children of a position are those under its kernel. For matrix poses a pose is taken as its D numbers.

    Source: the self-attention routing section of the paper.
    """

    is_iterative = False

    def __init__(self, pose: PoseShape, num_children: int, num_parents: int, options: RoutingOptions) -> None:
        super().__init__(pose, num_children, num_parents, options)
        self.log_prior = nn.Parameter(torch.zeros(num_children, num_parents))

    def first(self, votes: Votes) -> Capsules:
        """The only pass."""
        sums = votes.sum_uniformly() * self.num_parents
        attended = votes.sum_by_attention(sums, self.pose.size**-0.5)
        return Capsules(squash_exponentially(attended + votes.sum_uniformly(self.log_prior)))

    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """As :meth:`first`: what the parents were changes nothing."""
        return self.first(votes)
