"""Squashing: a pose keeps its direction and gets a length between 0 and 1."""

from __future__ import annotations

import torch
from torch import Tensor

# Added under the root, so that a pose of zeros has a gradient.
_EPSILON = 1e-12


def squash(poses: Tensor) -> Tensor:
    r"""Return :math:`\frac{|s|^2}{1 + |s|^2} \frac{s}{|s|}` for poses s (J, Q, C, ...), |s| over (Q, C).

    Source: eq. 1 in Sabour et al. 2017 (arXiv 1710.09829).
    """
    length = measure_length(poses)
    return poses * (length / (1 + length**2))


def squash_exponentially(poses: Tensor) -> Tensor:
    r"""Return :math:`\big(1 - e^{-|s|}\big) \frac{s}{|s|}` for poses s (J, Q, C, ...), |s| over (Q, C).

    Source: Mazzia et al. 2021 (arXiv 2101.12491).
    """
    length = measure_length(poses)
    return poses * (-torch.expm1(-length) / length)


def measure_length(poses: Tensor) -> Tensor:
    """Return the Euclidean length of poses (J, Q, C, ...) over (Q, C), kept as (J, 1, 1, ...)."""
    return (poses.square().sum((1, 2), keepdim=True) + _EPSILON).sqrt()
