"""The estimator of one target: additive model, boosted correction that shrinks with distance, conformal intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from sklearn.base import BaseEstimator

from trainpilot.errors import PredictorError
from trainpilot.predictors.analytic import AdditiveModel
from trainpilot.predictors.boosted import BoostedResidual
from trainpilot.predictors.conventions import UnfittedError
from trainpilot.predictors.crossfit import HeldOut, Shrinkage, cross_coverage, errors_of, learn_shrinkage
from trainpilot.predictors.domain import Position
from trainpilot.predictors.features import SIZE_FEATURES, feature_names, mix, scale_free
from trainpilot.predictors.folds import Fold
from trainpilot.predictors.intervals import Intervals
from trainpilot.predictors.operators import OperatorModel, fold_models
from trainpilot.predictors.parallel import side_by_side
from trainpilot.predictors.splits import Splits
from trainpilot.predictors.targets import STEP_TIME, Figures, Target, price_step_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.operator_labels import OperatorLabels
    from trainpilot.predictors.table import WorkTable

# With fewer models than this, trees can only learn them by heart.
_LEAST_MODELS_FOR_TREES = 8
# So many steps at a time: what is computed of them on the way stays in the cache of a core.
_CHUNK = 1024


@dataclass(frozen=True)
class Forecast:
    """What is predicted of one step.

    Attributes:
        value: Point estimate, above 0.
        low: Lower bound, or None without a valid interval.
        high: Upper bound, or None.
        in_range: Whether the step is inside what was measured.
        notes: Why it is out of range, and why there is no interval.
    """

    value: float
    low: float | None
    high: float | None
    in_range: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Forecasts(Sequence[Forecast]):
    """What is predicted of n steps: arrays of length n, and a ``Forecast`` of each on demand.

    Attributes:
        value: Point estimates.
        low: Lower bounds, NaN without a valid interval.
        high: Upper bounds, NaN without one.
        position: Where the steps lie relative to what was measured.
        intervals: Where the bounds come from.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    position: Position
    intervals: Intervals

    @property
    def in_range(self) -> NDArray[np.bool_]:
        """Whether each step is inside what was measured, shape (n,)."""
        return self.position.in_range

    def __len__(self) -> int:
        return len(self.value)

    @overload
    def __getitem__(self, row: int) -> Forecast: ...
    @overload
    def __getitem__(self, row: slice) -> list[Forecast]: ...
    def __getitem__(self, row: int | slice) -> Forecast | list[Forecast]:
        if isinstance(row, slice):
            return [self[position] for position in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        inside, valued = bool(self.in_range[row]), not math.isnan(self.low[row])
        notes = [f"out of range: {reason}" for reason in self.position.reasons(row)]
        if not valued:
            notes.append(self.intervals.why_none(inside))
        return Forecast(
            value=float(self.value[row]),
            low=float(self.low[row]) if valued else None,
            high=float(self.high[row]) if valued else None,
            in_range=inside,
            notes=tuple(notes),
        )

    def __iter__(self) -> Iterator[Forecast]:
        return (self[row] for row in range(len(self)))


class TargetModel(BaseEstimator):  # type: ignore[misc]
    """Learns one target from measured steps.

    Args:
        target: What is learned.
        level: Nominal coverage of the intervals.
        n_jobs: Folds that are fitted at a time, and threads of the boosted part; default: the usable cores.

    Attributes:
        operators_: The operator-level model that gives the parts, or None where calibration figures do.
        additive_: The additive model.
        boosted_: The boosted correction, or None where the target has none or there are too few models.
        shrinkage_: How much of it applies.
        domain_: What the model was fitted on.
        figures_: Calibration figures by context.
        intervals_: Half-widths of the intervals.
        held_out_: Held-out predictions; empty where nothing can be validated.
        metrics_: Held-out errors by kind of fold.
    """

    def __init__(self, target: Target = STEP_TIME, level: float = 0.9, n_jobs: int | None = None) -> None:
        self.target = target
        self.level = level
        self.n_jobs = n_jobs

    def fit(
        self,
        table: WorkTable,
        y: NDArray[np.float64],
        figures: Figures,
        splits: Splits | None = None,
        operators: OperatorLabels | None = None,
    ) -> TargetModel:
        """Fit on measured steps. The result does not depend on the number of threads.

        Args:
            table: n steps.
            y: Labels above 0, shape (n,).
            figures: Calibration figures by context; a missing one gets reference figures.
            splits: Those of this table at these figures, if another target has made them already.
            operators: Times of single operators inside these steps.

        Raises:
            PredictorError: There is no row, or a label is not finite and above 0.
        """
        labels = np.asarray(y, dtype=float)
        if not len(table) or labels.shape != (len(table),):
            raise PredictorError(f"{len(table)} steps and labels of shape {labels.shape} do not match")
        splits = Splits.of(table, figures) if splits is None else splits
        self.figures_, self.domain_ = splits.figures, splits.domain
        # Where single operators were timed, a fold needs a model of these that saw nothing of what it holds out.
        learned = None
        if operators is not None and self.target.by_operator:
            learned = fold_models(table, splits.folds, self.figures_, operators, self.n_jobs)
        self.operators_ = None if learned is None else learned[0]
        folds = [np.arange(len(table)), *(fold.train for fold in splits.folds)]
        parts = self._parts_of_folds(table, learned, len(folds))
        features = splits.features if self.target.boosted else np.empty((len(table), 0))
        fitted = side_by_side(
            lambda train, own: self._fit_parts(splits, own, features, labels, train), folds, parts, n_jobs=self.n_jobs
        )
        self.additive_, self.boosted_ = fitted[0]
        held = [
            self._hold_out(splits, fold, position, own, labels, *models)
            for fold, position, own, models in zip(splits.folds, splits.positions, parts[1:], fitted[1:], strict=True)
        ]
        self.held_out_ = HeldOut.join(held) if held else None
        self.shrinkage_ = Shrinkage() if self.held_out_ is None else learn_shrinkage(self.held_out_)
        self.calibrate()
        return self

    def _parts_of_folds(
        self, table: WorkTable, learned: Sequence[OperatorModel] | None, count: int
    ) -> list[NDArray[np.float64]]:
        """What the additive model of each fold adds up, the one of all steps first."""
        if learned is None:
            return [self.target.parts(table, self.figures_)] * count
        known = {id(model): model.parts(table, self.figures_) for model in learned}
        return [known[id(model)] for model in learned]

    def _fit_parts(
        self,
        splits: Splits,
        parts: NDArray[np.float64],
        features: NDArray[np.float64],
        labels: NDArray[np.float64],
        train: NDArray[np.intp],
    ) -> tuple[AdditiveModel, BoostedResidual | None]:
        """Fit on some of the steps."""
        parts, labels, contexts = parts[train], labels[train], splits.table.context[train]
        additive = self.target.additive(learned=self.operators_ is not None).fit(parts, labels, contexts)
        if not self.target.boosted or len(set(splits.table.model_hash[train])) < _LEAST_MODELS_FOR_TREES:
            return additive, None
        residual = np.log(labels / additive.predict(parts, contexts))
        boosted = BoostedResidual(rising=SIZE_FEATURES, n_jobs=self.n_jobs)
        return additive, boosted.fit_named(features[train], feature_names(splits.categories), residual)

    def _hold_out(
        self,
        splits: Splits,
        fold: Fold,
        position: Position,
        parts: NDArray[np.float64],
        labels: NDArray[np.float64],
        additive: AdditiveModel,
        boosted: BoostedResidual | None,
    ) -> HeldOut:
        """What the models of a fold say of the steps that were held out."""
        held = splits.table.take(fold.held)
        base = additive.predict(parts[fold.held], held.context)
        correction = np.zeros(len(held))
        if boosted is not None:
            correction = boosted.predict_named(splits.features[fold.held], feature_names(splits.categories))
        return HeldOut.of_fold(fold, held, position, np.log(labels[fold.held] / base), correction)

    def calibrate(self) -> None:
        """Intervals and metrics from the held-out predictions."""
        self.metrics_: dict[str, dict[str, Any]] = {}
        held = self.held_out_
        if held is None:
            self.intervals_ = Intervals(self.level, None, None, 0, 0)
            return
        errors = held.errors(self.shrinkage_)
        for kind in ("family", "model", "size"):
            mask = held.kind == kind
            if mask.any():
                self.metrics_[kind] = {
                    **errors_of(errors[mask]),
                    "groups": len(set((held.family if kind == "family" else held.model)[mask])),
                    "additive": errors_of(held.base[mask]),
                }
        # Unseen families are the honest case; with a single family its unseen models have to do.
        main = "family" if "family" in self.metrics_ else "model"
        chosen = (held.kind == main) | ((held.kind == "size") & ~held.in_range)
        self.intervals_ = Intervals.of(
            errors[chosen], held.workload[chosen], held.in_range[chosen], held.extrapolation[chosen], self.level
        )
        if main in self.metrics_:
            judged = held.of_kind(main)
            self.metrics_[main]["coverage"] = cross_coverage(judged, errors[held.kind == main], self.level)

    def predict(self, table: WorkTable) -> NDArray[np.float64]:
        """Point estimates, shape (n,).

        Raises:
            NotFittedError: ``fit`` was not called.
        """
        self._fitted()
        return self._values([self._describe(part, locate=self._located) for part in table.chunks(_CHUNK)])

    def forecast(self, table: WorkTable, position: Position | None = None) -> Forecasts:
        """Point estimates with intervals and range, one per step.

        Args:
            table: n steps.
            position: Where they lie in ``domain_`` at the prices of ``figures_``, if it is known already.

        Raises:
            NotFittedError: ``fit`` was not called.
        """
        self._fitted()
        if position is not None and not self._boosts:
            values = self.additive_total(table)
        else:
            described = [self._describe(part, locate=True) for part in table.chunks(_CHUNK)]
            values = self._values(described)
            position = Position.join([part.position for part in described if part.position is not None])
        half = self.intervals_.half_widths(position.in_range, position.extrapolation)
        return Forecasts(values, values * np.exp(-half), values * np.exp(half), position, self.intervals_)

    def parts(self, table: WorkTable) -> NDArray[np.float64]:
        """What the additive model adds up for n steps, before its corrections, shape (n, parts)."""
        operators = self._fitted().operators_
        if operators is not None:
            return operators.parts(table, self.figures_)
        return self.target.parts(table, self.figures_)

    def additive_total(self, table: WorkTable) -> NDArray[np.float64]:
        """What the additive model alone gives to n steps, shape (n,), in the target's unit."""
        factors = [self.additive_.factors(context) for context in table.contexts[0]]
        parts = self.parts(table)
        parts *= table.by_context(factors)
        total: NDArray[np.float64] = parts.sum(axis=1)
        return total

    @property
    def _boosts(self) -> bool:
        return self.boosted_ is not None and self.shrinkage_.weight > 0

    @property
    def _located(self) -> bool:
        """Whether a point estimate depends on where its step lies."""
        return self._boosts and not math.isinf(self.shrinkage_.reach)

    def _describe(self, table: WorkTable, *, locate: bool) -> _Described:
        base = self.additive_total(table)
        if not locate and not self._boosts:
            return _Described(base, None, None)
        priced = price_step_s(table, self.figures_)
        mixes = mix(table, priced)
        features = None
        if self._boosts:
            features = scale_free(table, priced, self.domain_.categories, mixes).astype(np.float32)
        return _Described(base, features, self.domain_.locate(table, priced, mixes) if locate else None)

    def _values(self, parts: Sequence[_Described]) -> NDArray[np.float64]:
        base = np.concatenate([part.base for part in parts])
        features = [part.features for part in parts if part.features is not None]
        if self.boosted_ is None or not features:
            return base
        positions = [part.position for part in parts if part.position is not None]
        factor: NDArray[np.float64] | float = self.shrinkage_.weight
        if self._located:
            factor = self.shrinkage_.factor(np.concatenate([position.distance for position in positions]))
        names = feature_names(self.domain_.categories)
        corrected: NDArray[np.float64] = base * np.exp(
            self.boosted_.predict_named(np.concatenate(features), names) * factor
        )
        return corrected

    def _fitted(self) -> TargetModel:
        if not hasattr(self, "additive_"):
            raise UnfittedError(f"the model of {self.target.name} is not fitted: call fit first")
        return self


@dataclass(frozen=True, eq=False)
class _Described:
    """What is computed of some steps, chunk by chunk: additive estimates, features if trees correct them, position."""

    base: NDArray[np.float64]
    features: NDArray[np.float32] | None
    position: Position | None
