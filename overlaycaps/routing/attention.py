"""Inverted dot-product attention routing (Tsai et al. 2020, arXiv 2002.04764)."""

from __future__ import annotations

from torch import Tensor

from overlaycaps.routing.base import PoseNorm, PoseShape, Routing, Votes


class AttentionRouting(Routing):
    r"""Parents attend to the votes of all children; the coefficients of each child sum to 1 over the parents.

    .. math::

        a_{ij} = \langle P_j, V_{ij} \rangle / \sqrt{D}, \quad
        r_{ij} = \mathrm{softmax}_j(a_{ij}), \quad
        P_j \leftarrow \mathrm{LayerNorm}\Big(\sum_i r_{ij} V_{ij}\Big)

    The parents start at zero, so the first pass has equal coefficients 1/J.

    Deviations from the paper: the division by sqrt(D) is the released code's, not in eqs. 1-3 (``scale_agreement``).
    The released code also divides the softmax by its own sum over the parents, which changes nothing and is left out.

    Source: eqs. 1-3 and procedure 1.
    """

    def __init__(self, pose: PoseShape, *, scale_agreement: bool = True) -> None:
        super().__init__(pose, scale_agreement=scale_agreement)
        self.norm = PoseNorm(pose)

    def first(self, votes: Votes) -> Tensor:
        """Pass 1: equal coefficients."""
        return self._normalize(votes.sum_uniformly())

    def again(self, votes: Votes, parents: Tensor) -> Tensor:
        """Passes 2..t: coefficients from the agreement with ``parents``."""
        return self._normalize(votes.sum_by_attention(parents, self.scale))

    def _normalize(self, sums: Tensor) -> Tensor:
        poses: Tensor = self.norm(sums)
        return poses
