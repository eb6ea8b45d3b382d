"""The boosted correction: XGBoost on the logarithm of measured / analytic time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xgboost
from sklearn.base import BaseEstimator, RegressorMixin

from trainpilot.errors import FeatureError, PredictorError
from trainpilot.hardware import usable_cores
from trainpilot.predictors.conventions import UnfittedError, checked_features, checked_training_data

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# XGBoost gives each thread blocks of 64 rows: with fewer, other threads only cost the time to start them.
_ONE_BLOCK = 64
# It stores float32, and answers inputs beyond that with a number that means nothing.
_LARGEST = float(np.finfo(np.float32).max)


class BoostedResidual(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gradient-boosted trees that know their features by name.

    Fitted on a data frame it takes data frames only, in any order of the columns: a bare array in another order would
    give a wrong number without an error. Fitted on a bare array, as scikit-learn allows, it takes arrays only.

    Args:
        trees: Number of trees.
        depth: Depth of a tree.
        learning_rate: Shrinkage of each tree.
        min_child_weight: Least number of rows in a leaf.
        row_share: Part of the rows that each tree sees.
        rising: Names of features with which the prediction may only rise.
        limit: Largest correction on log-time, either way.
        n_jobs: Threads of a prediction of many rows; default: the usable cores (affinity and cgroup quota). Training
            takes one: sums of floats depend on how many threads add them up, and folds are fitted side by side.

    Attributes:
        booster_: The trained ``xgboost.Booster``.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, in the order of the fit; missing after a fit on a bare array.
    """

    def __init__(
        self,
        trees: int = 300,
        depth: int = 4,
        learning_rate: float = 0.05,
        min_child_weight: float = 5.0,
        row_share: float = 0.7,
        rising: Sequence[str] = (),
        limit: float = 1.0,
        n_jobs: int | None = None,
    ) -> None:
        self.trees = trees
        self.depth = depth
        self.learning_rate = learning_rate
        self.min_child_weight = min_child_weight
        self.row_share = row_share
        self.rising = rising
        self.limit = limit
        self.n_jobs = n_jobs

    def fit(self, X: pd.DataFrame | ArrayLike, y: ArrayLike) -> BoostedResidual:  # noqa: N803
        """Fit on log(measured / analytic).

        Args:
            X: Finite features by name, shape (n, features).
            y: Finite targets, shape (n,).

        Raises:
            FeatureError: A value is not finite (the text names the feature), or the shapes are none of a table and
                its labels.
        """
        values, target = checked_training_data(self, X, y)
        names = _names(X)
        if names is not None and len(set(names)) < len(names):
            raise FeatureError("two features have the same name")
        return self._fit(values, target, names)

    def fit_named(self, values: NDArray[np.floating], names: Sequence[str], y: NDArray[np.float64]) -> BoostedResidual:
        """The same as ``fit`` of a data frame with these columns, without making one.

        Raises:
            FeatureError: A value is not finite; the text names the feature.
        """
        return self._fit(values, y, list(names))

    def _fit(
        self, values: NDArray[np.floating], target: NDArray[np.float64], names: list[str] | None
    ) -> BoostedResidual:
        labels = [f"x{position}" for position in range(values.shape[1])] if names is None else names
        _check_finite(values, labels)
        unknown = [name for name in self.rising if name not in labels]
        if unknown:
            raise FeatureError(f"rising feature {unknown[0]} is missing")
        parameters = {
            "objective": "reg:squarederror",
            "max_depth": self.depth,
            "eta": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "subsample": self.row_share,
            "tree_method": "hist",
            "base_score": 0.0,  # no correction where the trees say nothing
            "monotone_constraints": tuple(int(name in self.rising) for name in labels),
            "nthread": 1,
            "seed": 0,
            "verbosity": 0,
        }
        # Beyond the limit a label is disturbed or the additive model is blind; either way a tree must not chase it.
        target = np.clip(target, -self.limit, self.limit)
        # The names come after the training: xgboost would compare them again for every tree.
        matrix = xgboost.DMatrix(values, label=target, nthread=1)
        booster = xgboost.train(parameters, matrix, num_boost_round=self.trees)
        booster.feature_names = labels
        return self._hold(booster, names)

    def _hold(self, booster: xgboost.Booster, names: list[str] | None) -> BoostedResidual:
        booster.set_param({"nthread": self.n_jobs or usable_cores()})
        self.booster_ = booster
        self.n_features_in_ = booster.num_features()
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._order = None if names is None else tuple(names)
        # Another number of threads cannot be told with each question: it would be set up anew, which takes longer.
        self._alone = booster.copy()
        self._alone.set_param({"nthread": 1})
        return self

    def predict(self, X: pd.DataFrame | ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Correction on log-time, shape (n,), within ±``limit``. Columns are taken by name, whatever their order.

        Raises:
            NotFittedError: ``fit`` was not called.
            FeatureError: ``X`` is an array although the features have names, lacks a feature, or holds a value that
                is not finite.
        """
        self._check_fitted()
        if self._order is None:
            return self._ask(checked_features(self, X, finite=False))
        if not isinstance(X, pd.DataFrame):
            raise FeatureError(f"features must be a data frame with named columns, got {type(X).__name__}")
        given = {str(name) for name in X.columns}
        missing = [name for name in self._order if name not in given]
        if missing:
            raise FeatureError(f"feature {missing[0]} is missing")
        named = X.set_axis([str(name) for name in X.columns], axis="columns")
        return self._ask(checked_features(self, named[list(self._order)], finite=False))

    def predict_named(self, values: NDArray[np.floating], names: Sequence[str]) -> NDArray[np.float64]:
        """The same as ``predict`` of a data frame with these columns, without making one.

        Args:
            values: Shape (n, features), C-ordered; float32 is not copied.
            names: Names of the columns: those of the fit, in the same order.

        Raises:
            NotFittedError: ``fit`` was not called.
            FeatureError: The names are others, or a value is not finite.
        """
        self._check_fitted()
        if tuple(names) != self._order:
            raise FeatureError("features are not those of the fit, or in another order")
        return self._ask(values)

    def _ask(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        _check_finite(values, self._order)
        booster = self._alone if len(values) <= _ONE_BLOCK else self.booster_
        raw = booster.inplace_predict(values, validate_features=False)
        corrections: NDArray[np.float64] = np.clip(raw.astype(float), -self.limit, self.limit)
        return corrections

    def _check_fitted(self) -> None:
        if not hasattr(self, "booster_"):
            raise UnfittedError("the boosted correction is not fitted: call fit first")

    @classmethod
    def from_booster(cls, booster: xgboost.Booster, **parameters: Any) -> BoostedResidual:
        """Wrap a booster that was read from a file.

        Raises:
            PredictorError: The booster does not know the names of its features.
        """
        if not booster.feature_names:
            raise PredictorError("the booster has no names of features")
        model = cls(**parameters)
        return model._hold(booster, list(booster.feature_names))


def _names(X: Any) -> list[str] | None:  # noqa: N803
    """Names of the columns, or None for what has none."""
    return [str(name) for name in X.columns] if isinstance(X, pd.DataFrame) else None


def _check_finite(values: NDArray[np.floating], names: Sequence[str] | None) -> None:
    valid = np.abs(values) <= _LARGEST  # false for NaN too
    if valid.all():
        return
    row, column = np.argwhere(~valid)[0]
    name = f"x{column}" if names is None else names[column]
    value = values[row, column]
    raise FeatureError(f"feature {name} is not a finite number: {'NaN' if np.isnan(value) else value}")
