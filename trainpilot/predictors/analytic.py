"""The additive model: time is a sum of parts, each an amount times a price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from trainpilot.errors import NotFittedError, PredictorError
from trainpilot.predictors.terms import term_amounts, unit_costs_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.hardware import Calibration
    from trainpilot.predictors.table import WorkTable

_ITERATIONS = 60
_HUBER = 2.0  # residuals beyond this many noise widths count linearly: a bad label must not move a price


def calibrated_step_time_s(table: WorkTable, calibration: Calibration) -> NDArray[np.float64]:
    """Step time by calibration figures alone, before any row exists. Shape (n,), in s.

    Raises:
        PredictorError: The calibration lacks a figure.
    """
    times: NDArray[np.float64] = term_amounts(table.work) @ unit_costs_s(calibration.figures)
    return times


class AdditiveModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Sum of priced parts with a correction factor per part, fitted on relative error.

    The model is ``y = sum_j x_j * exp(c_j + e_kj)``: ``x_j`` are the parts as the calibration prices them, ``c_j``
    corrects the price of part j everywhere, ``e_kj`` in context k (threads, dtype, machine). So every coefficient is
    positive. The squared error of log y is minimised with Gaussian priors on ``c`` and ``e`` around 0 (a wide one on
    their common level): a part that the data do not identify keeps the price of the calibration, moved by the level
    of all others. Large residuals count linearly (Huber). Solved by Gauss-Newton steps with halving.

    Args:
        level_spread: Standard deviation of the common level of all corrections, in log units.
        term_spread: Standard deviation of one part's correction around that level.
        context_spread: Standard deviation of what one context adds, for its level and for each part.
        noise: Standard deviation of log y around the sum, label noise and misfit together.

    Attributes:
        common_: Corrections ``c``, shape (parts,).
        contexts_: ``{context: e}``, each of shape (parts,).
        n_features_in_: Number of parts.
    """

    def __init__(
        self,
        level_spread: float = 2.3,
        term_spread: float = 0.5,
        context_spread: float = 0.3,
        noise: float = 0.2,
    ) -> None:
        self.level_spread = level_spread
        self.term_spread = term_spread
        self.context_spread = context_spread
        self.noise = noise

    def fit(
        self,
        X: NDArray[np.float64],  # noqa: N803 (scikit-learn's name)
        y: NDArray[np.float64],
        contexts: Sequence[Any] | NDArray[np.object_] | None = None,
    ) -> AdditiveModel:
        """Fit the corrections.

        Args:
            X: Parts at calibration prices, shape (n, parts), each 0 or more, each row's sum above 0.
            y: Labels above 0, shape (n,).
            contexts: Context of each row (hashable), shape (n,); default: one for all.

        Raises:
            PredictorError: A value is not finite or below 0, or there is no row.
        """
        parts, target = _checked(X, y)
        keys = [None] * len(parts) if contexts is None else list(contexts)
        distinct = sorted(set(keys), key=repr)
        count = parts.shape[1]
        # With one context its deviation is the common correction, so it gets no parameters of its own.
        own = distinct if len(distinct) > 1 else []
        member = np.array([distinct.index(key) for key in keys])
        spreads = [self.level_spread, *[self.term_spread] * count, *[self.context_spread] * (len(own) * (count + 1))]
        precision = 1.0 / np.square(np.array(spreads))

        def corrections(theta: NDArray[np.float64]) -> NDArray[np.float64]:
            """Correction of each part in each context, shape (contexts, parts)."""
            common = theta[0] + theta[1 : count + 1]
            result: NDArray[np.float64] = common[None, :]
            if own:
                block = theta[count + 1 :].reshape(len(own), count + 1)
                result = common + block[:, :1] + block[:, 1:]
            return result

        def evaluate(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
            priced = parts * np.exp(corrections(theta)[member])
            total = priced.sum(axis=1)
            residual = (np.log(target) - np.log(total)) / self.noise
            size = np.abs(residual)
            loss = np.where(size <= _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER)).sum()
            return float(loss + 0.5 * (precision * theta**2).sum()), residual, priced / total[:, None]

        theta = np.zeros(len(spreads))
        theta[0] = float(np.median(np.log(target / parts.sum(axis=1))))
        loss, residual, shares = evaluate(theta)
        for _ in range(_ITERATIONS):
            jacobian = np.zeros((len(parts), len(theta)))
            jacobian[:, 0] = 1.0
            jacobian[:, 1 : count + 1] = shares
            for position in range(len(own)):
                start = count + 1 + position * (count + 1)
                mine = member == position
                jacobian[mine, start] = 1.0
                jacobian[mine, start + 1 : start + 1 + count] = shares[mine]
            jacobian /= self.noise
            weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12))
            hessian = jacobian.T @ (jacobian * weight[:, None]) + np.diag(precision)
            step = np.linalg.solve(hessian, jacobian.T @ (weight * residual) - precision * theta)
            scale = 1.0
            while True:
                trial = theta + scale * step
                trial_loss, trial_residual, trial_shares = evaluate(trial)
                if trial_loss <= loss or scale < 1e-6:
                    break
                scale /= 2
            done = loss - trial_loss < 1e-10 * max(1.0, loss)
            if trial_loss <= loss:
                theta, loss, residual, shares = trial, trial_loss, trial_residual, trial_shares
            if done:
                break
        self.n_features_in_ = count
        self.common_ = theta[0] + theta[1 : count + 1]
        deviations = corrections(theta) - self.common_
        self.contexts_ = {key: deviations[position] for position, key in enumerate(distinct)}
        return self

    def predict(
        self,
        X: NDArray[np.float64],  # noqa: N803
        contexts: Sequence[Any] | NDArray[np.object_] | None = None,
    ) -> NDArray[np.float64]:
        """Sum of the corrected parts, shape (n,). A context that was not fitted gets the common corrections.

        Raises:
            NotFittedError: ``fit`` was not called.
        """
        total: NDArray[np.float64] = self.parts(X, contexts).sum(axis=1)
        return total

    def parts(
        self,
        X: NDArray[np.float64],  # noqa: N803
        contexts: Sequence[Any] | NDArray[np.object_] | None = None,
    ) -> NDArray[np.float64]:
        """The corrected parts, shape (n, parts).

        Raises:
            NotFittedError: ``fit`` was not called.
            PredictorError: The number of parts is not the one of the fit.
        """
        if not hasattr(self, "common_"):
            raise NotFittedError("the additive model is not fitted: call fit first")
        parts = np.asarray(X, dtype=float)
        if parts.ndim != 2 or parts.shape[1] != self.n_features_in_:
            raise PredictorError(f"expected {self.n_features_in_} parts a row, got an array of shape {parts.shape}")
        keys = [None] * len(parts) if contexts is None else list(contexts)
        none = np.zeros(self.n_features_in_)
        deviation = np.array([self.contexts_.get(key, none) for key in keys]).reshape(parts.shape)
        priced: NDArray[np.float64] = parts * np.exp(self.common_ + deviation)
        return priced

    def to_card(self, names: Sequence[str], label: Mapping[Any, str]) -> dict[str, Any]:
        """What was learned, as JSON; ``label`` names each context."""
        return {
            "terms": list(names),
            "common": self.common_.tolist(),
            "contexts": {label[key]: values.tolist() for key, values in self.contexts_.items()},
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any], names: Sequence[str], key: Mapping[str, Any]) -> AdditiveModel:
        """Restore what ``to_card`` wrote.

        Raises:
            PredictorError: The parts are not the ones of this version.
        """
        if list(card["terms"]) != list(names):
            raise PredictorError(f"terms {', '.join(card['terms'])} are not those of this version: {', '.join(names)}")
        model = cls()
        model.n_features_in_ = len(names)
        model.common_ = np.array(card["common"], dtype=float)
        model.contexts_ = {key[label]: np.array(values, dtype=float) for label, values in card["contexts"].items()}
        shapes = {model.common_.shape, *(values.shape for values in model.contexts_.values())}
        if shapes != {(len(names),)}:
            raise PredictorError("corrections and terms differ in number")
        return model


def _checked(X: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # noqa: N803
    parts, target = np.asarray(X, dtype=float), np.asarray(y, dtype=float)
    if parts.ndim != 2 or target.shape != (len(parts),) or not len(parts):
        raise PredictorError(f"parts of shape {parts.shape} and labels of shape {target.shape} do not match")
    if not np.isfinite(parts).all() or (parts < 0).any() or not (parts.sum(axis=1) > 0).all():
        raise PredictorError("parts must be finite, 0 or more, and above 0 in sum")
    if not np.isfinite(target).all() or (target <= 0).any():
        raise PredictorError("labels must be finite and above 0")
    return parts, target
