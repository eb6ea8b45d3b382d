"""The boosted correction: XGBoost on the logarithm of measured / analytic time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xgboost
from sklearn.base import BaseEstimator, RegressorMixin

from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.hardware import usable_cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray


class BoostedResidual(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Gradient-boosted trees that know their features by name.

    Only data frames are taken: a bare array in another column order would give a wrong number without an error.

    Args:
        trees: Number of trees.
        depth: Depth of a tree.
        learning_rate: Shrinkage of each tree.
        min_child_weight: Least number of rows in a leaf.
        row_share: Part of the rows that each tree sees.
        rising: Names of features with which the prediction may only rise.
        limit: Largest correction on log-time, either way.
        n_jobs: Threads; default: the usable cores (affinity and cgroup quota).

    Attributes:
        booster_: The trained ``xgboost.Booster``.
        feature_names_in_: Names of the features, in the order of the fit.
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

    def fit(self, X: pd.DataFrame, y: ArrayLike) -> BoostedResidual:  # noqa: N803
        """Fit on log(measured / analytic).

        Args:
            X: Finite features by name, shape (n, features).
            y: Finite targets, shape (n,).

        Raises:
            PredictorError: ``X`` is no data frame, or a value is not finite; the text names the feature.
        """
        names = _names(X)
        values = _finite(X, names)
        target = np.asarray(y, dtype=float)
        if not np.isfinite(target).all():
            raise PredictorError("labels of the correction must be finite")
        # Beyond the limit a label is disturbed or the additive model is blind; either way a tree must not chase it.
        target = np.clip(target, -self.limit, self.limit)
        parameters = {
            "objective": "reg:squarederror",
            "max_depth": self.depth,
            "eta": self.learning_rate,
            "min_child_weight": self.min_child_weight,
            "subsample": self.row_share,
            "tree_method": "hist",
            "base_score": 0.0,  # no correction where the trees say nothing
            "monotone_constraints": dict.fromkeys(self.rising, 1),
            "nthread": self.n_jobs or usable_cores(),
            "seed": 0,
            "verbosity": 0,
        }
        matrix = xgboost.DMatrix(values, label=target, feature_names=names, nthread=parameters["nthread"])
        self.booster_ = xgboost.train(parameters, matrix, num_boost_round=self.trees)
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)
        return self

    def predict(self, X: pd.DataFrame) -> NDArray[np.float64]:  # noqa: N803
        """Correction on log-time, shape (n,), within ±``limit``. Columns are taken by name, whatever their order.

        Raises:
            NotFittedError: ``fit`` was not called.
            PredictorError: ``X`` is no data frame, lacks a feature, or holds a value that is not finite.
        """
        if not hasattr(self, "booster_"):
            raise NotFittedError("the boosted correction is not fitted: call fit first")
        given = set(_names(X))
        names = [str(name) for name in self.feature_names_in_]
        missing = [name for name in names if name not in given]
        if missing:
            raise PredictorError(f"feature {missing[0]} is missing")
        matrix = xgboost.DMatrix(_finite(X, names), feature_names=names, nthread=self.n_jobs or usable_cores())
        raw = self.booster_.predict(matrix).astype(float)
        clipped: NDArray[np.float64] = np.clip(raw, -self.limit, self.limit)
        return clipped

    @classmethod
    def from_booster(cls, booster: xgboost.Booster, **parameters: Any) -> BoostedResidual:
        """Wrap a booster that was read from a file."""
        model = cls(**parameters)
        model.booster_ = booster
        model.feature_names_in_ = np.array(booster.feature_names or [], dtype=object)
        model.n_features_in_ = len(model.feature_names_in_)
        return model


def _names(X: Any) -> list[str]:  # noqa: N803
    if not isinstance(X, pd.DataFrame):
        raise PredictorError(f"features must be a data frame with named columns, got {type(X).__name__}")
    return [str(name) for name in X.columns]


def _finite(X: pd.DataFrame, names: list[str]) -> NDArray[np.float64]:  # noqa: N803
    values: NDArray[np.float64] = X[names].to_numpy(dtype=float)
    # xgboost stores float32 and answers inputs beyond it with a number that means nothing.
    wrong = ~np.isfinite(values) | (np.abs(values) > np.finfo(np.float32).max)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise PredictorError(f"feature {names[column]} is not a finite number: {values[row, column]}")
    return values
