"""The estimator of one target: additive model, boosted correction that shrinks with distance, conformal intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator

from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.predictors.analytic import AdditiveModel
from trainpilot.predictors.boosted import BoostedResidual
from trainpilot.predictors.crossfit import HeldOut, Shrinkage, cross_coverage, errors_of, learn_shrinkage
from trainpilot.predictors.domain import Domain
from trainpilot.predictors.features import SIZE_FEATURES, Categories, feature_names, scale_free
from trainpilot.predictors.folds import Fold, family_folds, model_folds, size_folds
from trainpilot.predictors.intervals import Intervals
from trainpilot.predictors.targets import STEP_TIME, Figures, Target, price_step_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

# With fewer models than this, trees can only learn them by heart.
_LEAST_MODELS_FOR_TREES = 8
_FEW_MODELS, _FEW_FAMILY_FOLDS, _FEW_MODEL_FOLDS = 100, 5, 3
# Held out at each end of the sizes, so that the error of going beyond the data is known even from a small sweep.
_EXTRAPOLATED_SHARE = 1 / 3


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


class TargetModel(BaseEstimator):  # type: ignore[misc]
    """Learns one target from measured steps.

    Args:
        target: What is learned.
        level: Nominal coverage of the intervals.
        n_jobs: Threads of the boosted part; default: the usable cores.

    Attributes:
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

    def fit(self, table: WorkTable, y: NDArray[np.float64], figures: Figures) -> TargetModel:
        """Fit on measured steps.

        Args:
            table: n steps.
            y: Labels above 0, shape (n,).
            figures: Calibration figures by context; a missing one gets reference figures.

        Raises:
            PredictorError: There is no row, or a label is not finite and above 0.
        """
        labels = np.asarray(y, dtype=float)
        if not len(table) or labels.shape != (len(table),):
            raise PredictorError(f"{len(table)} steps and labels of shape {labels.shape} do not match")
        self.figures_ = dict(figures)
        priced = price_step_s(table, figures)
        self.additive_, self.boosted_ = self._fit_parts(table, labels, priced)
        size = size_folds(table, priced.sum(axis=1), share=_EXTRAPOLATED_SHARE, smallest=True)
        # A small sweep is fitted in seconds: its held-out errors are coarse anyway.
        few = len(set(table.model_hash)) < _FEW_MODELS
        folds = [
            *(family_folds(table, _FEW_FAMILY_FOLDS) if few else family_folds(table)),
            *(model_folds(table, _FEW_MODEL_FOLDS) if few else model_folds(table)),
            *size,
        ]
        parts = [self._hold_out(fold, table, labels, priced) for fold in folds if len(fold.train)]
        self.held_out_ = HeldOut.join(parts) if parts else None
        self.shrinkage_ = Shrinkage() if self.held_out_ is None else learn_shrinkage(self.held_out_)
        self.domain_ = Domain.of(table, priced)
        self.calibrate()
        return self

    def _fit_parts(
        self,
        table: WorkTable,
        labels: NDArray[np.float64],
        priced: NDArray[np.float64],
    ) -> tuple[AdditiveModel, BoostedResidual | None]:
        parts = self.target.parts(table, self.figures_)
        additive = self.target.additive().fit(parts, labels, table.context)
        if not self.target.boosted or len(set(table.model_hash)) < _LEAST_MODELS_FOR_TREES:
            return additive, None
        residual = np.log(labels / additive.predict(parts, table.context))
        features = _features(table, priced, Categories.of(table))
        boosted = BoostedResidual(rising=SIZE_FEATURES, n_jobs=self.n_jobs).fit(features, residual)
        return additive, boosted

    def _hold_out(
        self, fold: Fold, table: WorkTable, labels: NDArray[np.float64], priced: NDArray[np.float64]
    ) -> HeldOut:
        train, held = table.take(fold.train), table.take(fold.held)
        held_priced = priced[fold.held]
        additive, boosted = self._fit_parts(train, labels[fold.train], priced[fold.train])
        base = additive.predict(self.target.parts(held, self.figures_), held.context)
        correction = np.zeros(len(held))
        if boosted is not None:
            correction = boosted.predict(_features(held, held_priced, Categories.of(train)))
        position = Domain.of(train, priced[fold.train]).locate(held, held_priced)
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
        """Point estimates, shape (n,)."""
        return self._points(table, price_step_s(table, self._fitted().figures_))

    def forecast(self, table: WorkTable) -> list[Forecast]:
        """Point estimates with intervals and range, one per step.

        Raises:
            NotFittedError: ``fit`` was not called.
        """
        priced = price_step_s(table, self._fitted().figures_)
        position = self.domain_.locate(table, priced)
        values = self._points(table, priced, position.distance)
        result = []
        for value, inside, beyond, reasons in zip(
            values, position.in_range, position.extrapolation, position.reasons, strict=True
        ):
            notes = [f"out of range: {reason}" for reason in reasons]
            half = self.intervals_.half_width(bool(inside), float(beyond))
            if half is None:
                notes.append(self.intervals_.why_none(bool(inside)))
            result.append(
                Forecast(
                    value=float(value),
                    low=None if half is None else float(value * math.exp(-half)),
                    high=None if half is None else float(value * math.exp(half)),
                    in_range=bool(inside),
                    notes=tuple(notes),
                )
            )
        return result

    def additive_parts(self, table: WorkTable) -> NDArray[np.float64]:
        """Parts of the additive model, shape (n, parts), in the target's unit."""
        return self.additive_.parts(self.target.parts(table, self._fitted().figures_), table.context)

    def _points(
        self, table: WorkTable, priced: NDArray[np.float64], distance: NDArray[np.float64] | None = None
    ) -> NDArray[np.float64]:
        base = self.additive_.predict(self.target.parts(table, self.figures_), table.context)
        if self.boosted_ is None or self.shrinkage_.weight == 0:
            return base
        if distance is None:
            distance = self.domain_.locate(table, priced).distance
        correction = self.boosted_.predict(_features(table, priced, self.domain_.categories))
        corrected: NDArray[np.float64] = base * np.exp(correction * self.shrinkage_.factor(distance))
        return corrected

    def _fitted(self) -> TargetModel:
        if not hasattr(self, "additive_"):
            raise NotFittedError(f"the model of {self.target.name} is not fitted: call fit first")
        return self


def _features(table: WorkTable, priced: NDArray[np.float64], categories: Categories) -> pd.DataFrame:
    names: Sequence[str] = feature_names(categories)
    return pd.DataFrame(scale_free(table, priced, categories), columns=list(names))
