"""How probable it is that one of several uncertain amounts is the smallest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from trainpilot.predictors import Estimate

ASSUMED_LOG_SIGMA = 0.4
"""Standard deviation of log(truth / estimate) where an estimate has no interval (assumed: a factor of 2 at 90%)."""

_QUADRATURE_POINTS = 2000
_NORMAL = NormalDist()


@dataclass(frozen=True)
class _LogNormal:
    """A lognormal distribution with a width of its own on each side of the median.

    Intervals on the log scale need not be symmetric, so each side takes its width from its own bound.
    """

    log_median: float
    log_sigma_low: float
    log_sigma_high: float

    @classmethod
    def of(cls, estimate: Estimate) -> _LogNormal:
        value = max(estimate.value, 1e-12)  # a time of exactly 0 has no logarithm; 1 ps is as good as none
        if estimate.low is None or estimate.high is None or estimate.level is None:
            return cls(math.log(value), ASSUMED_LOG_SIGMA, ASSUMED_LOG_SIGMA)
        z = _NORMAL.inv_cdf((1 + estimate.level) / 2)
        above = math.log(max(estimate.high, value) / value) / z
        # A lower bound of 0 says nothing about the width below, so the other side stands in.
        below = math.log(value / min(estimate.low, value)) / z if estimate.low > 0 else above
        return cls(math.log(value), below, above)

    def quantile(self, z: float) -> float:
        """Logarithm of the quantile at standard score ``z``."""
        return self.log_median + z * (self.log_sigma_high if z > 0 else self.log_sigma_low)

    def survival(self, log_value: float) -> float:
        """Probability of a larger value; ties with a certain value count half."""
        distance = log_value - self.log_median
        sigma = self.log_sigma_high if distance > 0 else self.log_sigma_low
        if sigma == 0:
            return 0.5 if distance == 0 else float(distance < 0)
        return _NORMAL.cdf(-distance / sigma)


_SCORES = tuple(_NORMAL.inv_cdf((k + 0.5) / _QUADRATURE_POINTS) for k in range(_QUADRATURE_POINTS))


def probability_smallest(estimates: Sequence[Estimate]) -> tuple[float, ...]:
    """Return for each estimate the probability that the true amount behind it is the smallest of all.

    Each amount is taken as lognormal, independent of the others, with its median at the point estimate and its
    width from its interval (``ASSUMED_LOG_SIGMA`` where there is none). The integral over each distribution is a
    midpoint sum over its quantiles, so the answer is deterministic.

    Args:
        estimates: At least one estimate, all in one unit.

    Returns:
        Probabilities that sum to 1.
    """
    found = [_LogNormal.of(estimate) for estimate in estimates]
    if len(found) == 1:
        return (1.0,)
    raw = []
    for index, own in enumerate(found):
        others = found[:index] + found[index + 1 :]
        points = (own.quantile(z) for z in _SCORES)
        raw.append(math.fsum(math.prod(other.survival(point) for other in others) for point in points))
    total = math.fsum(raw)
    return tuple(value / total for value in raw)
