"""What a predictor was fitted on: categories, ranges of work, and how similar the nearest workload is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.predictors.features import MIX_FEATURES, SHARE_FEATURES, Categories, mix
from trainpilot.predictors.table import Context
from trainpilot.predictors.terms import STEP_TERMS, Term

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

# An amount counts as outside only if it is clearly beyond what was seen, and only if it matters for the time.
_BEYOND = 2.0
_MATERIAL_SHARE = 0.1
# A mix of operators is unlike all that was seen if the nearest one is this many usual distances away.
_UNLIKE = 4.0
# Mixes that are tried first, and among how many they are chosen.
_CENTERS, _CANDIDATES = 64, 256
# Intensities are logarithms of FLOPs per byte; a factor of e there weighs as much as a share of 0.15 of the work.
_INTENSITY_WEIGHT = 0.15
_COUNTED = np.array([term.quantity != "step" for term in STEP_TERMS])


@dataclass(frozen=True, eq=False)
class Position:
    """Where n steps lie relative to what was seen; all arrays have length n.

    Attributes:
        domain: What was seen.
        amounts: Amount of each term, shape (n, terms).
        outside: Whether a term's amount is clearly beyond what was seen and matters, shape (n, terms).
        points: Coordinates of the mix of operators.
        extrapolation: Natural logarithm of how far the amounts of work lie beyond the seen ones; 0 inside.
        in_range: Whether each step lies inside.
    """

    domain: Domain
    amounts: NDArray[np.float64]
    outside: NDArray[np.bool_]
    points: NDArray[np.float64]
    extrapolation: NDArray[np.float64]
    in_range: NDArray[np.bool_]

    @cached_property
    def distance(self) -> NDArray[np.float64]:
        """Distance of the mix of operators to the nearest one seen, shape (n,); 0 for the same mix.

        In units of the usual distance between neighbours. Found when it is asked for: it takes longer than the rest.
        """
        return self.domain.nearest(self.points)[0]

    @classmethod
    def join(cls, parts: Sequence[Position]) -> Position:
        """The positions of several tables in one domain, one table after the other."""
        if len(parts) == 1:
            return parts[0]
        names = [name for name in cls.__dataclass_fields__ if name != "domain"]
        return cls(parts[0].domain, **{name: np.concatenate([getattr(p, name) for p in parts]) for name in names})

    def reasons(self, row: int) -> tuple[str, ...]:
        """Why a step is out of range, in words; empty inside."""
        return () if self.in_range[row] else self.domain.reasons(self, row)


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
    def of(cls, table: WorkTable, mixes: NDArray[np.float64]) -> Domain:
        """Learn the range of a table.

        Args:
            table: n steps.
            mixes: What ``mix`` gives for them.
        """
        amounts = table.terms
        points = _coordinates(mixes)
        # One row a model and mix: repeated settings of one workload add nothing to what was seen.
        _, first = np.unique(np.round(points, 9), axis=0, return_index=True)
        first = np.sort(first)
        return cls(
            categories=Categories.of(table),
            contexts=tuple(sorted(table.contexts[0])),
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

    def locate(
        self, table: WorkTable, priced: NDArray[np.float64], mixes: NDArray[np.float64] | None = None
    ) -> Position:
        """Tell where steps lie. Amounts that hardly matter for the time cannot put a step out of range.

        Args:
            table: n steps.
            priced: Terms at calibration prices in s, shape (n, terms).
            mixes: What ``mix`` gave for these steps, if it is at hand.
        """
        amounts = table.terms
        least, most = self._bounds
        # What was never seen has the bounds 0 and infinity, so any amount of it is above the one and below the other.
        outside = (amounts > most) | (amounts < least)
        outside &= (amounts > 0) & (priced >= _MATERIAL_SHARE * priced.sum(axis=1, keepdims=True)) & _COUNTED
        extrapolation = np.zeros(len(table))
        rows, terms = np.nonzero(outside)
        if len(rows):
            found, largest, smallest = amounts[rows, terms], self.most[terms], self.least[terms]
            novel = largest == 0
            ratio = np.where(found < smallest, smallest / found, found / np.where(novel, 1.0, largest))
            np.maximum.at(extrapolation, rows, np.where(novel, 1.0, np.log(ratio)))
        points = _coordinates(mix(table, priced) if mixes is None else mixes)
        return Position(
            domain=self,
            amounts=amounts,
            outside=outside,
            points=points,
            extrapolation=extrapolation,
            in_range=~(outside.any(axis=1) | self._unlike(points)),
        )

    def nearest(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Distance to the nearest mix in units of the usual one, and the position of that mix, each of shape (n,)."""
        apart, position = self._tree.query(points)
        return apart / self.scale, position

    def _unlike(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether the nearest mix is far away, shape (n,)."""
        centers, squares = self._centers
        # Most steps lie so near to one of a few mixes that the nearest one need not be looked for. The margin is far
        # beyond rounding, so the answer is the same as if it were.
        products = centers @ points.T
        products += squares[:, None]
        apart = (points**2).sum(axis=1) + products.min(axis=0)
        unlike: NDArray[np.bool_] = apart > (_UNLIKE * self.scale) ** 2 * (1 - 1e-6)
        doubtful = np.flatnonzero(unlike)
        if len(doubtful):
            unlike[doubtful] = self.nearest(points[doubtful])[0] > _UNLIKE
        return unlike

    @cached_property
    def _centers(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A few mixes that are near to most of the others, times -2, and the squares of their lengths."""
        among = self.mixes[np.linspace(0, len(self.mixes) - 1, min(len(self.mixes), _CANDIDATES)).astype(int)]
        apart = (among**2).sum(axis=1)[:, None] + (self.mixes**2).sum(axis=1) - 2.0 * among @ self.mixes.T
        near = apart <= (_UNLIKE * self.scale) ** 2
        chosen: list[int] = []
        for _ in range(min(_CENTERS, len(among))):
            chosen.append(int(near.sum(axis=1).argmax()))
            near &= ~near[chosen[-1]]
        centers = among[chosen]
        return -2.0 * centers, (centers**2).sum(axis=1)

    def reasons(self, position: Position, row: int) -> tuple[str, ...]:
        """Why a step is out of range, in words; empty inside."""
        found = [
            self._why(STEP_TERMS[term], position.amounts[row, term], term)
            for term in np.flatnonzero(position.outside[row]).tolist()
        ]
        distances, nearest = self.nearest(position.points[row : row + 1])
        if distances[0] > _UNLIKE:
            found.append(
                f"its mix of operators is unlike any measured one (nearest: {self.mix_names[nearest[0]]}, "
                f"{distances[0]:.2g} times the usual distance)"
            )
        return tuple(found)

    @cached_property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Amounts of each term beyond which a step is outside."""
        return self.least / _BEYOND, self.most * _BEYOND

    @cached_property
    def _tree(self) -> Any:
        from scipy.spatial import cKDTree

        return cKDTree(self.mixes)

    def _why(self, term: Term, value: float, position: int) -> str:
        what, least, most = _in_words(term), self.least[position], self.most[position]
        if most == 0:
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
