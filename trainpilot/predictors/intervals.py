"""Conformal prediction intervals on log-time.

Split conformal prediction (Vovk et al. 2005; Lei et al. 2018): with n scores from data that the predictor has not
seen, the k-th smallest, k = ceil((n + 1) * level), bounds a new score with probability of at least ``level``. If
k > n no finite bound is valid, and none is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Clocks and schedulers do not repeat a step more exactly than this, whatever the scores say.
_LEAST_HALF_WIDTH = 1e-3


def conformal_rank(count: int, level: float) -> int | None:
    """Rank k = ceil((n + 1) * level) of the score that bounds a new one, or None if it is beyond n."""
    # Rounded first: (9 + 1) * 0.9 is 9.000000000000002 in some orders of operation.
    rank = math.ceil(round((count + 1) * level, 9))
    return rank if rank <= count else None


def conformal_bound(scores: ArrayLike, level: float, groups: ArrayLike | None = None) -> float | None:
    """Bound of a new score, or None if there are too few for the level.

    Args:
        scores: Absolute errors on unseen data, 0 or more, shape (n,).
        level: Nominal coverage.
        groups: What each score belongs to, shape (n,). Scores of one group are not independent, so the rank is that
            of the number of groups, and every group has the same weight.

    Returns:
        The bound, or None where no valid finite one exists.
    """
    values = np.asarray(scores, dtype=float)
    names = np.arange(len(values)) if groups is None else np.asarray(groups)
    distinct, member, sizes = np.unique(names, return_inverse=True, return_counts=True)
    rank = conformal_rank(len(distinct), level)
    if rank is None:
        return None
    order = np.argsort(values, kind="stable")
    weight = np.cumsum(1.0 / sizes[member][order])
    position = int(np.searchsorted(weight, rank - 1e-9))
    return float(values[order][min(position, len(values) - 1)])


@dataclass(frozen=True)
class Intervals:
    """Half-widths of the intervals on log-time.

    Attributes:
        level: Nominal coverage.
        inside: Half-width inside the range, or None where too few scores support one.
        outside: Half-width just outside the range, or None.
        groups_inside: Number of unseen groups behind ``inside``.
        groups_outside: Number behind ``outside``.
    """

    level: float
    inside: float | None
    outside: float | None
    groups_inside: int
    groups_outside: int

    @classmethod
    def of(
        cls,
        errors: NDArray[np.float64],
        groups: NDArray[np.object_],
        in_range: NDArray[np.bool_],
        extrapolation: NDArray[np.float64],
        level: float,
    ) -> Intervals:
        """Calibrate on held-out predictions.

        Args:
            errors: log(measured / predicted) of steps that the predictor had not seen, shape (n,).
            groups: Workload of each, shape (n,).
            in_range: Whether the predictor called it inside its range, shape (n,).
            extrapolation: How far beyond the range, shape (n,).
            level: Nominal coverage.
        """
        names = np.array([str(group) for group in groups])
        scores = np.abs(errors)
        inside = conformal_bound(scores[in_range], level, names[in_range])
        # Outside, errors grow with the distance, so they are compared after division by it.
        scaled = scores[~in_range] / (1.0 + extrapolation[~in_range])
        outside = conformal_bound(scaled, level, names[~in_range])
        if outside is not None and inside is not None:
            outside = max(outside, inside)
        return cls(
            level=level,
            inside=None if inside is None else max(inside, _LEAST_HALF_WIDTH),
            outside=None if outside is None else max(outside, _LEAST_HALF_WIDTH),
            groups_inside=len(set(names[in_range])),
            groups_outside=len(set(names[~in_range])),
        )

    def half_widths(self, in_range: NDArray[np.bool_], extrapolation: NDArray[np.float64]) -> NDArray[np.float64]:
        """Half-widths on log-time of n predictions, shape (n,); NaN where no valid interval is known."""
        inside = math.nan if self.inside is None else self.inside
        outside = math.nan if self.outside is None else self.outside
        return np.where(in_range, inside, outside * (1.0 + extrapolation))

    def why_none(self, in_range: bool) -> str:
        """Why there is no interval, in words."""
        where, count = ("inside", self.groups_inside) if in_range else ("outside", self.groups_outside)
        needed = next(n for n in range(1, 10_000) if conformal_rank(n, self.level) is not None)
        return (
            f"no valid interval: the predictor was tried on {count} unseen workloads {where} its range, "
            f"and {needed} are needed for {self.level:.0%}"
        )

    def to_card(self) -> dict[str, Any]:
        """Everything as JSON."""
        return dict(vars(self))

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> Intervals:
        """Restore what ``to_card`` wrote."""
        return cls(**card)
