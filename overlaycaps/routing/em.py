"""EM routing (Hinton, Sabour, Frosst 2018, "Matrix capsules with EM routing", ICLR 2018)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from overlaycaps.routing.base import Capsules, PoseShape, Routing, RoutingOptions, Votes

_FINAL_INVERSE_TEMPERATURE = 0.01
# A variance below this is noise of float32, and its logarithm would rule the cost.
_MIN_VARIANCE = 1e-6
_MIN_MASS = 1e-8

Gaussians = tuple[Tensor, Tensor, Tensor]
"""Means, variances (J, Q, C, T) and activations (J, T)."""


class EmRouting(Routing):
    r"""Each parent is a Gaussian over the votes for it; expectation and maximisation alternate.

    M-step, with :math:`R_{ij}` the share of child i that parent j gets, times the child's activation:

    .. math::

        \mu_j = \frac{\sum_i R_{ij} V_{ij}}{\sum_i R_{ij}}, \quad
        \sigma_j^2 = \frac{\sum_i R_{ij} (V_{ij} - \mu_j)^2}{\sum_i R_{ij}}, \quad
        \mathrm{cost}_j = \sum_h (\beta_u + \log \sigma_{jh}) \sum_i R_{ij}, \quad
        a_j = \mathrm{logistic}\big(\lambda (\beta_a - \mathrm{cost}_j)\big)

    E-step, normalised over the parents:

    .. math::

        R_{ij} = \frac{a_j \, \mathcal N(V_{ij}; \mu_j, \sigma_j^2)}
            {\sum_k a_k \, \mathcal N(V_{ik}; \mu_k, \sigma_k^2)}

    The first pass is an M-step with shares 1/J; every later pass is an E-step and an M-step. The shares of each child
    sum to 1 over the parents. The betas are learned, one of each a parent. The paper gives no schedule for the inverse
    temperature; :math:`\lambda_t = 0.01 (1 - 0.95^t)` in pass t is the one that public re-implementations ascribe to
    its authors' answers in the open review.

    Numerically: the E-step is a softmax of logarithms, variances are at least 1e-6, and the mass that a parent divides
    by at least 1e-8.

    Deviations from the paper: the logits of the classes are read from the poses, as with every routing here, and not
    from the activations. Coordinate addition is left out. A vote is W P, as everywhere here, not P W. In a
    convolutional layer a child is shared among the parents of each position apart; in the paper all parents that see
    it, at all positions, compete for it. In the paper beta_a is the same for all capsules. For vector poses, h runs
    over the D numbers just the same.

    Source: section 3 and procedure 1.
    """

    uses_activations = True

    def __init__(self, pose: PoseShape, num_children: int, num_parents: int, options: RoutingOptions) -> None:
        super().__init__(pose, num_children, num_parents, options)
        self.beta_use = nn.Parameter(torch.zeros(num_parents))
        self.beta_activate = nn.Parameter(torch.zeros(num_parents))

    def first(self, votes: Votes) -> Capsules:
        """An M-step with equal shares."""
        pose, variance, activation = votes.map(self._start, votes.child_activations)
        return Capsules(pose, activation, variance)

    def again(self, votes: Votes, parents: Capsules, number: int) -> Capsules:
        """An E-step from the parents' Gaussians, and an M-step."""
        assert parents.activation is not None and parents.memory is not None  # every pass of this routing leaves both
        scale = _inverse_temperature(number)

        def step(votes_here: Tensor, children: Tensor, mean: Tensor, variance: Tensor, present: Tensor) -> Gaussians:
            return self._maximize(votes_here, expect(votes_here, mean, variance, present), children, scale)

        pose, variance, activation = votes.map(
            step, votes.child_activations, parents.pose, parents.memory, parents.activation
        )
        return Capsules(pose, activation, variance)

    def _start(self, votes: Tensor, children: Tensor) -> Gaussians:
        shares = votes.new_full((votes.shape[0], votes.shape[1], votes.shape[-1]), 1 / votes.shape[1])
        return self._maximize(votes, shares, children, _inverse_temperature(1))

    def _maximize(self, votes: Tensor, shares: Tensor, children: Tensor, scale: float) -> Gaussians:
        """Return mean and variance (J, Q, C, T) and activation (J, T) from votes (I, J, Q, C, T), shares (I, J, T)."""
        shares = shares * children[:, None]
        mass = shares.sum(0)  # (J, T)
        weights = (shares / mass.clamp_min(_MIN_MASS))[:, :, None, None]
        mean = (weights * votes).sum(0)
        variance = (weights * (votes - mean).square()).sum(0).clamp_min(_MIN_VARIANCE)
        spread = 0.5 * variance.log().sum((1, 2))  # sum over h of log sigma
        cost = (self.pose.size * self.beta_use[:, None] + spread) * mass
        return mean, variance, torch.sigmoid(scale * (self.beta_activate[:, None] - cost))


def expect(votes: Tensor, mean: Tensor, variance: Tensor, activation: Tensor) -> Tensor:
    """E-step: shares (I, J, T) of votes (I, J, Q, C, T) among Gaussians (J, Q, C, T) with activations (J, T)."""
    distance = ((votes - mean).square() / variance).sum((2, 3))
    constant = variance.log().sum((1, 2)) + mean.shape[1] * mean.shape[2] * math.log(2 * math.pi)
    # An activation that has underflown to 0 must not make every share NaN.
    present = activation.clamp_min(torch.finfo(activation.dtype).tiny).log()
    return torch.softmax(present - 0.5 * (constant + distance), dim=1)


def _inverse_temperature(number: int) -> float:
    return float(_FINAL_INVERSE_TEMPERATURE * (1 - 0.95**number))
