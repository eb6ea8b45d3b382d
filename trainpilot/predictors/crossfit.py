"""Predictions for steps that were held out, and what their errors are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.folds import Fold, family_groups
from trainpilot.predictors.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.domain import Position
    from trainpilot.predictors.table import WorkTable


@dataclass(frozen=True)
class HeldOut:
    """Held-out predictions, one entry per held-out step and fold; all arrays have length n.

    Attributes:
        row: Position of the step in the table.
        kind: Kind of the fold.
        family: Family of the step.
        model: Model hash.
        workload: Workload hash.
        base: log(measured / additive model).
        correction: What the boosted correction would add to the logarithm.
        distance: Distance of the mix of operators to the fold's training data.
        extrapolation: How far beyond the amounts of the fold's training data.
        in_range: Whether the step is inside the range of the fold's training data.
    """

    row: NDArray[np.intp]
    kind: NDArray[np.object_]
    family: NDArray[np.object_]
    model: NDArray[np.object_]
    workload: NDArray[np.object_]
    base: NDArray[np.float64]
    correction: NDArray[np.float64]
    distance: NDArray[np.float64]
    extrapolation: NDArray[np.float64]
    in_range: NDArray[np.bool_]

    @classmethod
    def join(cls, parts: Sequence[HeldOut]) -> HeldOut:
        """All parts in one."""
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})

    @classmethod
    def of_fold(
        cls,
        fold: Fold,
        held: WorkTable,
        position: Position,
        base: NDArray[np.float64],
        correction: NDArray[np.float64],
    ) -> HeldOut:
        """The entries of one fold.

        Args:
            fold: The fold.
            held: Its held-out steps, n of them.
            position: Where they lie relative to the fold's training data.
            base: log(measured / additive model), shape (n,).
            correction: What the boosted correction would add to the logarithm, shape (n,).
        """
        return cls(
            row=fold.held,
            kind=np.full(len(held), fold.kind, dtype=object),
            family=family_groups(held),
            model=held.model_hash,
            workload=held.workload_hash,
            base=base,
            correction=correction,
            distance=position.distance,
            extrapolation=position.extrapolation,
            in_range=position.in_range,
        )

    def errors(self, shrinkage: Shrinkage) -> NDArray[np.float64]:
        """log(measured / predicted) with so much of the boosted correction, shape (n,)."""
        corrected: NDArray[np.float64] = self.base - shrinkage.factor(self.distance) * self.correction
        return corrected

    def of_kind(self, *kinds: str) -> HeldOut:
        """The entries of these kinds of folds."""
        mask = np.isin(self.kind, kinds)
        return HeldOut(**{name: getattr(self, name)[mask] for name in self.__dataclass_fields__})

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Shrinkage:
    """How much of the boosted correction applies: ``weight * exp(-distance / reach)``.

    Attributes:
        weight: Part that applies to a mix of operators that was seen; 0 if the correction did not help.
        reach: Distance over which it falls by a factor of e; infinite if it does not fall.
    """

    weight: float = 0.0
    reach: float = np.inf

    def factor(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Part of the correction that applies, shape (n,)."""
        factor: NDArray[np.float64] = self.weight * np.exp(-distance / self.reach)
        return factor


_WEIGHTS = (0.25, 0.5, 0.75, 1.0)
_REACHES = (0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
_LEAST_GAIN = 0.003  # mean absolute log error: less is not worth another part


def learn_shrinkage(held: HeldOut) -> Shrinkage:
    """Choose the shrinkage with the least error on steps that were held out, by family and by model.

    Held-out models of known families lie near, held-out families far, so together they tell how far a correction
    carries. Each family has the same weight. A correction is used only if it helps by more than chance: by more than
    the standard error of its gain over the families, on all steps and on unseen families alone.
    """
    learned = held.of_kind("family", "model")
    if not len(learned):
        return Shrinkage()
    groups = np.array([f"{kind} {family}" for kind, family in zip(learned.kind, learned.family, strict=True)])
    names, member = np.unique(groups, return_inverse=True)
    unseen = np.array([name.startswith("family ") for name in names])
    plain = np.abs(learned.base)
    best, most = Shrinkage(), _LEAST_GAIN
    for weight in _WEIGHTS:
        for reach in _REACHES:
            candidate = Shrinkage(weight, reach)
            gains = plain - np.abs(learned.errors(candidate))
            by_group = np.bincount(member, gains) / np.bincount(member)
            certain = all(_beyond_chance(part) for part in (by_group, by_group[unseen]) if len(part))
            if certain and by_group.mean() > most:
                best, most = candidate, float(by_group.mean())
    return best


def _beyond_chance(gains: NDArray[np.float64]) -> bool:
    if len(gains) < 2:
        return bool(gains[0] > 0)
    return bool(gains.mean() > gains.std(ddof=1) / np.sqrt(len(gains)))


def errors_of(log_errors: NDArray[np.float64]) -> dict[str, float]:
    """Error measures of predictions.

    Args:
        log_errors: log(measured / predicted), shape (n,).

    Returns:
        ``n``; ``mape``, ``median_ape`` and ``p90_ape``: mean, median and 90th percentile of
        |predicted - measured| / measured, as fractions.
    """
    if not len(log_errors):
        return {"n": 0}
    ape = np.abs(np.expm1(-log_errors))
    return {
        "n": len(ape),
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "p90_ape": float(np.quantile(ape, 0.9)),
    }


def cross_coverage(held: HeldOut, log_errors: NDArray[np.float64], level: float) -> float | None:
    """Share of steps inside intervals that were calibrated without their family; None if none has an interval."""
    hits: list[bool] = []
    for family in sorted(set(held.family)):
        mine = held.family == family
        rest = ~mine
        intervals = Intervals.of(
            log_errors[rest], held.workload[rest], held.in_range[rest], held.extrapolation[rest], level
        )
        half = intervals.half_widths(held.in_range[mine], held.extrapolation[mine])
        known = ~np.isnan(half)
        hits.extend(np.abs(log_errors[mine][known]) <= half[known])
    return float(np.mean(hits)) if hits else None
