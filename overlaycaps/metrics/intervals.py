"""Intervals for proportions."""

from __future__ import annotations

from statistics import NormalDist


def wilson_interval(correct: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    r"""Score interval for a binomial proportion.

    .. math::

        \frac{\hat p + z^2/2n \pm z \sqrt{\hat p (1 - \hat p)/n + z^2/4n^2}}{1 + z^2/n}

    with :math:`\hat p` = correct / total, n = total, and z the two-sided normal quantile.

    Args:
        correct: successes.
        total: trials, at least 1.
        confidence: of the interval, between 0 and 1.

    Returns:
        Lower and upper bound, in [0, 1].

    Raises:
        ValueError: if the counts or the confidence make no sense.

    Source: Wilson 1927, J. Am. Stat. Assoc. 22:209.
    """
    if not 0 <= correct <= total or total < 1:
        raise ValueError(f"{correct} of {total} is no proportion")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence} is not between 0 and 1")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = correct / total
    centre = share + z**2 / (2 * total)
    spread = z * (share * (1 - share) / total + z**2 / (4 * total**2)) ** 0.5
    scale = 1 + z**2 / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
