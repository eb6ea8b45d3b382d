"""What a predictor was fitted on: categories, ranges of work, and how similar the nearest workload is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.predictors.features import MIX_FEATURES, SHARE_FEATURES, Categories, mix
from trainpilot.predictors.table import Context
from trainpilot.predictors.terms import STEP_TERMS, Term, term_amounts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

# An amount counts as outside only if it is clearly beyond what was seen, and only if it matters for the time.
_BEYOND = 2.0
_MATERIAL_SHARE = 0.1
# A mix of operators is unlike all that was seen if the nearest one is this many usual distances away.
_UNLIKE = 4.0
# Intensities are logarithms of FLOPs per byte; a factor of e there weighs as much as a share of 0.15 of the work.
_INTENSITY_WEIGHT = 0.15
_COUNTED = np.array([term.quantity != "step" for term in STEP_TERMS])


@dataclass(frozen=True)
class Position:
    """Where n steps lie relative to what was seen; all sequences have length n.

    Attributes:
        distance: Distance of the mix of operators to the nearest one seen, in units of the usual distance between
            neighbours; 0 for the same mix.
        extrapolation: Natural logarithm of how far the amounts of work lie beyond the seen ones; 0 inside.
        reasons: Why the step is out of range, in words; empty inside.
    """

    distance: NDArray[np.float64]
    extrapolation: NDArray[np.float64]
    reasons: tuple[tuple[str, ...], ...]

    @property
    def in_range(self) -> NDArray[np.bool_]:
        """Whether each step lies inside, shape (n,)."""
        return np.array([not reasons for reasons in self.reasons], dtype=bool)


@dataclass(frozen=True, eq=False)
class Domain:
    """The range of a set of steps.

    Attributes:
        categories: Values of the execution settings and optimizers.
        contexts: Complete combinations of machine and execution settings.
        least: Smallest amount above 0 of each term, shape (terms,); infinite where none was seen.
        most: Largest amount of each term, shape (terms,).
        mixes: Distinct mixes of operators, shape (m, coordinates).
        mix_names: Name of the model of each mix, length m.
        scale: Usual distance between neighbours.
    """

    categories: Categories
    contexts: tuple[Context, ...]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    mixes: NDArray[np.float64]
    mix_names: tuple[str, ...]
    scale: float

    @classmethod
    def of(cls, table: WorkTable, priced: NDArray[np.float64]) -> Domain:
        """Learn the range of a table.

        Args:
            table: n steps.
            priced: Terms at calibration prices in s, shape (n, terms).
        """
        amounts = term_amounts(table.work)
        points = _coordinates(mix(table, priced))
        # One row a model and mix: repeated settings of one workload add nothing to what was seen.
        _, first = np.unique(np.round(points, 9), axis=0, return_index=True)
        first = np.sort(first)
        return cls(
            categories=Categories.of(table),
            contexts=tuple(sorted(set(table.context))),
            least=np.where(amounts > 0, amounts, np.inf).min(axis=0),
            most=amounts.max(axis=0),
            mixes=points[first],
            mix_names=tuple(str(name) for name in table.name[first]),
            scale=_usual_distance(points[first], table.model_hash[first]),
        )

    def unknown(self, context: Context) -> tuple[str, ...]:
        """Which execution settings were never seen, in words; empty if all were.

        A category that was never seen is never priced as another one: the caller answers otherwise, or not at all.
        """
        missing = []
        for what, value, seen in (
            ("threads", context.threads, self.categories.threads),
            ("dtype", context.dtype, self.categories.dtype),
            ("memory format", context.memory_format, self.categories.memory_format),
        ):
            if value not in seen:
                missing.append(f"{what} {value} (measured: {', '.join(str(item) for item in seen)})")
        return tuple(missing)

    def locate(self, table: WorkTable, priced: NDArray[np.float64]) -> Position:
        """Tell where steps lie. Amounts that hardly matter for the time cannot put a step out of range.

        Args:
            table: n steps.
            priced: Terms at calibration prices in s, shape (n, terms).
        """
        amounts = term_amounts(table.work)
        material = (amounts > 0) & (priced >= _MATERIAL_SHARE * priced.sum(axis=1, keepdims=True)) & _COUNTED
        # What was never seen has no range to be above or below of.
        novel = material & (self.most == 0)
        above = material & ~novel & (amounts > self.most * _BEYOND)
        below = material & ~novel & (amounts < self.least / _BEYOND)
        beyond = np.where(novel, 1.0, 0.0)
        beyond[above] = np.log(amounts[above] / np.broadcast_to(self.most, amounts.shape)[above])
        beyond[below] = np.log(np.broadcast_to(self.least, amounts.shape)[below] / amounts[below])
        apart, nearest = self._tree.query(_coordinates(mix(table, priced)))
        distance = apart / self.scale
        unlike = distance > _UNLIKE
        reasons: list[tuple[str, ...]] = [()] * len(table)
        for row in np.flatnonzero((novel | above | below).any(axis=1) | unlike):
            found = [
                self._why(term, amounts[row, position], position, bool(novel[row, position]))
                for position, term in enumerate(STEP_TERMS)
                if novel[row, position] or above[row, position] or below[row, position]
            ]
            if unlike[row]:
                found.append(
                    f"its mix of operators is unlike any measured one (nearest: {self.mix_names[nearest[row]]}, "
                    f"{distance[row]:.2g} times the usual distance)"
                )
            reasons[row] = tuple(found)
        return Position(distance=distance, extrapolation=beyond.max(axis=1), reasons=tuple(reasons))

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.mixes)

    def _why(self, term: Term, value: float, position: int, novel: bool) -> str:
        what, least, most = _in_words(term), self.least[position], self.most[position]
        if novel:
            return f"{value:.3g} {what} a step, but no measured workload has any"
        if value > most:
            return f"{value:.3g} {what} a step are {value / most:.3g} times the largest measured ({most:.3g})"
        return f"{value:.3g} {what} a step are below the smallest measured ({least:.3g})"

    def to_card(self) -> dict[str, Any]:
        """Everything as JSON; an amount that was never seen is null."""
        return {
            "terms": [term.name for term in STEP_TERMS],
            "mix_features": list(MIX_FEATURES),
            "least": [None if np.isinf(value) else value for value in self.least.tolist()],
            "most": self.most.tolist(),
            "mixes": self.mixes.tolist(),
            "mix_names": list(self.mix_names),
            "scale": self.scale,
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any], categories: Categories, contexts: Sequence[Context]) -> Domain:
        """Restore what ``to_card`` wrote."""
        return cls(
            categories=categories,
            contexts=tuple(contexts),
            least=np.array([np.inf if value is None else float(value) for value in card["least"]]),
            most=np.array(card["most"], dtype=float),
            mixes=np.array(card["mixes"], dtype=float).reshape(len(card["mixes"]), len(MIX_FEATURES)),
            mix_names=tuple(card["mix_names"]),
            scale=float(card["scale"]),
        )


def _in_words(term: Term) -> str:
    if term.quantity == "calls":
        return term.name.replace("_", " ").replace("calls", "dispatches")
    return term.name.replace("_", " ").replace("flops", "FLOPs")


def _coordinates(mixes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coordinates in which distances between mixes are taken, shape (n, len(MIX_FEATURES)).

    Square roots of shares make the Hellinger distance: the first percent of a new kind of work counts for more than
    a percent more of a known one.
    """
    points = mixes * _INTENSITY_WEIGHT
    count = len(SHARE_FEATURES)
    points[:, :count] = np.sqrt(mixes[:, :count])
    points[:, -1] = mixes[:, -1]
    return points


def _usual_distance(points: NDArray[np.float64], models: NDArray[np.object_]) -> float:
    """Median distance from a mix to the nearest one of another model, at least a floor for nearly equal mixes."""
    from scipy.spatial import cKDTree

    _, member, sizes = np.unique(models.astype(str), return_inverse=True, return_counts=True)
    # Among one more neighbour than a model has mixes, there is one of another model.
    count = min(len(points), int(sizes.max()) + 1)
    apart, neighbour = cKDTree(points).query(points, k=range(1, count + 1))
    apart[member[neighbour] == member[:, None]] = np.inf
    nearest = apart.min(axis=1)
    finite = nearest[np.isfinite(nearest)]
    return max(float(np.median(finite)) if len(finite) else 0.0, 0.05)
