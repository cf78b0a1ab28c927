"""Dynamic routing by agreement (Sabour et al. 2017, arXiv 1710.09829)."""

from __future__ import annotations

from overlaycaps.routing.base import Capsules, Routing, Votes
from overlaycaps.routing.squash import squash


class DynamicRouting(Routing):
    r"""Logits start at zero and accumulate the agreement of every pass; parents are squashed.

    .. math::

        c_{ij} = \mathrm{softmax}_j(b_{ij}), \quad
        P_j = \mathrm{squash}\Big(\sum_i c_{ij} V_{ij}\Big), \quad
        b_{ij} \leftarrow b_{ij} + \langle P_j, V_{ij} \rangle

    The coefficients of each child sum to 1 over the parents. The agreement is linear in the parents, so the logits are
    :math:`b_{ij} = \langle M_j, V_{ij} \rangle` with :math:`M_j` the sum of the parent's poses over the passes;
    this sum is all that is kept, instead of I x J logits a position.

    Deviations from the paper: it routes one layer to its end before the next is begun; that is the ``sequential``
    schedule here. In the ``concurrent`` schedule the votes change between passes, and the logits are the agreement of
    the present votes with all poses so far. The logits of the classes are read from the poses, as with every routing
    here, and not from their lengths. For matrix poses, squash and agreement take a pose as its D numbers.

    Source: procedure 1 and eqs. 1-3.
    """

    def first(self, votes: Votes) -> Capsules:
        """Pass 1: logits of zero, equal coefficients."""
        pose = squash(votes.sum_uniformly())
        return Capsules(pose, memory=pose)

    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """Passes 2..t: coefficients from the agreement with all poses so far."""
        assert parents.memory is not None  # every pass of this routing leaves one
        pose = squash(votes.sum_by_attention(parents.memory, 1.0))
        return Capsules(pose, memory=parents.memory + pose)
