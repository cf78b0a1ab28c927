"""Inverted dot-product attention routing (Tsai et al. 2020, arXiv 2002.04764)."""

from __future__ import annotations

from torch import nn

from overlaycaps.routing.base import Capsules, PoseNorm, PoseShape, Routing, RoutingOptions, Votes


class AttentionRouting(Routing):
    r"""Parents attend to the votes of all children; the coefficients of each child sum to 1 over the parents.

    .. math::

        a_{ij} = \langle P_j, V_{ij} \rangle / \sqrt{D}, \quad
        r_{ij} = \mathrm{softmax}_j(a_{ij}), \quad
        P_j \leftarrow \mathrm{LayerNorm}\Big(\sum_i r_{ij} V_{ij}\Big)

    The parents start at zero, so the first pass has equal coefficients 1/J.

    Deviations from the paper: the division by sqrt(D) is the released code's, not in eqs. 1-3 (``scale_agreement``).
    The released code also divides the softmax by its own sum over the parents, which changes nothing and is left out.
    Without ``layer_norm``, the paper's ablation, the sums are the poses.

    Source: eqs. 1-3 and procedure 1.
    """

    def __init__(self, pose: PoseShape, num_children: int, num_parents: int, options: RoutingOptions) -> None:
        super().__init__(pose, num_children, num_parents, options)
        self.norm = PoseNorm(pose) if options.layer_norm else nn.Identity()
        self.scale = pose.size**-0.5 if options.scale_agreement else 1.0

    def first(self, votes: Votes) -> Capsules:
        """Pass 1: equal coefficients."""
        return Capsules(self.norm(votes.sum_uniformly()))

    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """Passes 2..t: coefficients from the agreement with the parents."""
        return Capsules(self.norm(votes.sum_by_attention(parents.pose, self.scale)))
