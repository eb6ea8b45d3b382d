"""The additive model: time is a sum of parts, each an amount times a price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg
from sklearn.base import BaseEstimator, RegressorMixin

from trainpilot.errors import FeatureError, PredictorError
from trainpilot.predictors.conventions import UnfittedError, checked_features, checked_training_data
from trainpilot.predictors.terms import term_amounts, unit_costs_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.hardware import Calibration
    from trainpilot.predictors.table import WorkTable

# One value of one setting of a context: its position in the context, and the value.
Factor = tuple[int, Any]

_ITERATIONS = 60
_HUBER = 2.0  # residuals beyond this many noise widths count linearly: a bad label must not move a price
_TOLERANCE = 2e-4  # of the loss: what it falls by after that is far below the noise of any label
_LARGEST_STEP = 3.0  # of one Gauss-Newton step, in log units


def calibrated_step_time_s(table: WorkTable, calibration: Calibration) -> NDArray[np.float64]:
    """Step time by calibration figures alone, before any row exists. Shape (n,), in s.

    Raises:
        PredictorError: The calibration lacks a figure.
    """
    times: NDArray[np.float64] = term_amounts(table.work) @ unit_costs_s(calibration.figures)
    return times


class AdditiveModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Sum of priced parts with a correction factor per part, fitted on relative error.

    The model is ``y = sum_j x_j * exp(c_j + sum_f e_fj)``: ``x_j`` are the parts at calibration prices, ``c_j``
    corrects the price of part j everywhere, and ``e_fj`` adds to it where setting f holds (two threads, bfloat16,
    channels last, another machine), so that what is learned of a setting in one combination holds in the others. So
    every coefficient is positive. The squared error of log y is minimised with Gaussian priors around 0, each a common
    level (wide for ``c``) and a deviation per part: a part that the data do not identify keeps the price of the
    calibration, moved by the level of all others. Large residuals count linearly (Huber). Solved by Gauss-Newton steps
    with halving.

    Args:
        level_spread: Standard deviation of the common level of all corrections, in log units.
        term_spread: Standard deviation of each part's correction around that level: one number, or one for each part.
        context_spread: Standard deviation of what one setting adds, for its level and for each part.
        noise: Standard deviation of log y around the sum, label noise and misfit together.

    Attributes:
        common_: Corrections ``c``, shape (parts,).
        deviations_: ``{(position, value): e}``, each of shape (parts,), of the settings that are not the commonest.
        n_features_in_: Number of parts.
    """

    common_: NDArray[np.float64]
    deviations_: dict[Factor, NDArray[np.float64]]
    n_features_in_: int

    def __init__(
        self,
        level_spread: float = 2.3,
        term_spread: float | Sequence[float] = 0.5,
        context_spread: float = 0.3,
        noise: float = 0.2,
    ) -> None:
        self.level_spread = level_spread
        self.term_spread = term_spread
        self.context_spread = context_spread
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        """Parts and labels are amounts of time: none is negative."""
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.target_tags.positive_only = True
        return tags

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
            contexts: Context of each row, shape (n,): tuples of settings, or one hashable setting each; default: one
                for all.

        Raises:
            FeatureError: A value is not finite or below 0, or there is no row.
        """
        parts, target = checked_training_data(self, X, y)
        _check_parts(parts, target)
        count = parts.shape[1]
        keys = _keys(contexts, len(parts))
        factors = _factors(keys)
        masks = np.column_stack([np.ones(len(parts)), *(_holds(factor, keys) for factor in factors)])
        spreads = np.broadcast_to(np.asarray(self.term_spread, dtype=float), (count,))
        # Parts that no row has follow from the others exactly, so they need not be searched.
        seen: NDArray[np.bool_] = np.any(parts > 0, axis=0).reshape(count)
        levels = [self.level_spread, *[self.context_spread] * len(factors)]
        deviations = [np.array(spreads), *[np.full(count, self.context_spread)] * len(factors)]
        precisions = [_precision(level, each[seen]) for level, each in zip(levels, deviations, strict=True)]
        begin = np.zeros((1 + len(factors), count))
        begin[0] = float(np.median(np.log(target / parts.sum(axis=1))))
        solved = _solve(parts[:, seen], target, masks, precisions, begin[:, seen], self.noise)
        found = [
            _unseen(level, each, seen, values) for level, each, values in zip(levels, deviations, solved, strict=True)
        ]
        self.n_features_in_ = count
        self.common_ = found[0]
        self.deviations_ = dict(zip(factors, found[1:], strict=True))
        return self

    def adapted(
        self,
        factor: Factor,
        X: NDArray[np.float64],  # noqa: N803
        y: NDArray[np.float64],
        contexts: Sequence[Any],
        spread: float,
    ) -> AdditiveModel:
        """The same model with one more setting, learned from a few rows; everything else stays as it is.

        Args:
            factor: The setting, such as the machine; it must hold for every row.
            X: Parts at calibration prices, shape (n, parts).
            y: Labels above 0, shape (n,).
            contexts: Context of each row, shape (n,).
            spread: Standard deviation of what it adds, for its level and for each part.

        Raises:
            FeatureError: A value is not finite or below 0, or there is no row.
        """
        parts, target = self.parts(X, contexts), np.asarray(y, dtype=float)
        _check_parts(parts, target)
        precision = _precision(spread, np.full(parts.shape[1], spread))
        begin = np.zeros((1, parts.shape[1]))
        found = _solve(parts, target, np.ones((len(parts), 1)), [precision], begin, self.noise)[0]
        model = AdditiveModel(**self.get_params(deep=False))
        model.n_features_in_, model.common_ = self.n_features_in_, self.common_
        model.deviations_ = {**self.deviations_, factor: self.deviations_.get(factor, 0.0) + found}
        return model

    def predict(
        self,
        X: NDArray[np.float64],  # noqa: N803
        contexts: Sequence[Any] | NDArray[np.object_] | None = None,
    ) -> NDArray[np.float64]:
        """Sum of the corrected parts, shape (n,). A setting that was not fitted adds nothing.

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
            FeatureError: The number of parts is not the one of the fit.
        """
        if not hasattr(self, "common_"):
            raise UnfittedError("the additive model is not fitted: call fit first")
        parts = checked_features(self, X, finite=True)
        keys = _keys(contexts, len(parts))
        distinct = sorted(set(keys), key=repr)
        by_key = {key: self.factors(key) for key in distinct}
        priced: NDArray[np.float64] = parts * np.array([by_key[key] for key in keys]).reshape(parts.shape)
        return priced

    def factors(self, key: tuple[Any, ...]) -> NDArray[np.float64]:
        """What each part is multiplied with in one context, shape (parts,)."""
        total = self.common_.copy()
        for factor in enumerate(key):
            total += self.deviations_.get(factor, 0.0)
        factors: NDArray[np.float64] = np.exp(total)
        return factors

    def to_card(self, names: Sequence[str]) -> dict[str, Any]:
        """What was learned, as JSON."""
        return {
            "terms": list(names),
            "common": self.common_.tolist(),
            "deviations": [[*factor, values.tolist()] for factor, values in self.deviations_.items()],
        }

    @classmethod
    def from_card(cls, card: Mapping[str, Any], names: Sequence[str]) -> AdditiveModel:
        """Restore what ``to_card`` wrote.

        Raises:
            PredictorError: The parts are not the ones of this version.
        """
        if list(card["terms"]) != list(names):
            raise PredictorError("the terms of the additive model are not those of this version")
        model = cls()
        model.n_features_in_ = len(names)
        model.common_ = np.array(card["common"], dtype=float)
        model.deviations_ = {(int(at), value): np.array(found, dtype=float) for at, value, found in card["deviations"]}
        learned = [model.common_, *model.deviations_.values()]
        if {values.shape for values in learned} != {(len(names),)}:
            raise PredictorError("corrections and terms differ in number")
        if not all(np.isfinite(values).all() for values in learned):
            raise PredictorError("a correction is not a finite number")
        return model


def _keys(contexts: Sequence[Any] | NDArray[np.object_] | None, count: int) -> list[tuple[Any, ...]]:
    if contexts is None:
        return [()] * count
    return [tuple(context) if isinstance(context, tuple) else (context,) for context in contexts]


def _factors(keys: Sequence[tuple[Any, ...]]) -> list[Factor]:
    """Every value of every setting but the commonest one, whose price is the common one; in a fixed order."""
    found: list[Factor] = []
    for position in range(max(map(len, keys), default=0)):
        counts = Counter(key[position] for key in keys)
        ordered = sorted(counts, key=lambda value: (-counts[value], repr(value)))
        found.extend((position, value) for value in sorted(ordered[1:], key=repr))
    return found


def _holds(factor: Factor, keys: Sequence[tuple[Any, ...]]) -> NDArray[np.float64]:
    position, value = factor
    return np.array([float(key[position] == value) for key in keys])


def _precision(level: float, spreads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inverse of the covariance of a common level and independent deviations, shape (parts, parts)."""
    # Sherman and Morrison: the covariance is a diagonal plus one outer product.
    own = 1.0 / spreads**2
    inverse: NDArray[np.float64] = np.diag(own) - np.outer(own, own) / (level**-2 + own.sum())
    return inverse


def _unseen(
    level: float, spreads: NDArray[np.float64], seen: NDArray[np.bool_], found: NDArray[np.float64]
) -> NDArray[np.float64]:
    """All corrections of a block: those of parts that no row has are the level that the others tell, shape (parts,)."""
    own = 1.0 / spreads[seen] ** 2
    everywhere: NDArray[np.float64] = np.full(len(spreads), float(own @ found / (level**-2 + own.sum())))
    everywhere[seen] = found
    return everywhere


def _solve(
    parts: NDArray[np.float64],
    target: NDArray[np.float64],
    masks: NDArray[np.float64],
    precisions: Sequence[NDArray[np.float64]],
    begin: NDArray[np.float64],
    noise: float,
) -> NDArray[np.float64]:
    """Gauss-Newton on the log error with Huber weights and Gaussian priors.

    Args:
        parts: Shape (n, parts).
        target: Shape (n,).
        masks: Which blocks of corrections hold for each row, shape (n, blocks), 0 or 1.
        precisions: Prior of each block, each of shape (parts, parts).
        begin: Where the search begins, shape (blocks, parts).
        noise: Standard deviation of log target.

    Returns:
        Corrections, shape (blocks, parts).
    """
    blocks, count = begin.shape
    prior = np.zeros((blocks * count, blocks * count))
    for block, precision in enumerate(precisions):
        prior[block * count : (block + 1) * count, block * count : (block + 1) * count] = precision
    # Rows with the same settings have the same corrections and take part in the same blocks, so all that is computed
    # of a row and the normal equations are computed once for each combination of settings.
    patterns, member = np.unique(masks, axis=0, return_inverse=True)
    order = np.argsort(member, kind="stable")
    parts, logs = parts[order], np.log(target)[order]
    ends = np.cumsum(np.bincount(member, minlength=len(patterns))).tolist()
    groups = [slice(begins, ends_at) for begins, ends_at in zip([0, *ends[:-1]], ends, strict=True)]

    def evaluate(theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
        factors = np.exp(patterns @ theta.reshape(blocks, count))
        priced = np.empty_like(parts)
        for group, factor in zip(groups, factors, strict=True):
            np.multiply(parts[group], factor, out=priced[group])
        total = priced.sum(axis=1)
        residual = (logs - np.log(total)) / noise
        size = np.abs(residual)
        loss = np.where(size <= _HUBER, 0.5 * size**2, _HUBER * (size - 0.5 * _HUBER)).sum()
        priced /= total[:, None]
        return float(loss + 0.5 * theta @ prior @ theta), residual, priced

    theta = begin.ravel().copy()
    loss, residual, shares = evaluate(theta)
    for _ in range(_ITERATIONS):
        weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12))
        slopes = np.array([shares[group].T @ (weight * residual / noise)[group] for group in groups])
        weighted = shares * (np.sqrt(weight) / noise)[:, None]
        squares = np.array([weighted[group].T @ weighted[group] for group in groups])
        gradient = (patterns.T @ slopes).ravel() - prior @ theta
        hessian = prior + np.einsum("gf,gs,gij->fisj", patterns, patterns, squares, optimize=True).reshape(prior.shape)
        step = scipy.linalg.solve(hessian, gradient, assume_a="pos", check_finite=False)
        scale = min(1.0, _LARGEST_STEP / max(float(np.abs(step).max()), 1e-12))
        while True:
            trial = theta + scale * step
            trial_loss, trial_residual, trial_shares = evaluate(trial)
            if trial_loss <= loss or scale < 1e-6:
                break
            scale /= 2
        done = loss - trial_loss < _TOLERANCE * max(1.0, loss)
        if trial_loss <= loss:
            theta, loss, residual, shares = trial, trial_loss, trial_residual, trial_shares
        if done:
            break
    return theta.reshape(blocks, count)


def _check_parts(parts: NDArray[np.float64], target: NDArray[np.float64]) -> None:
    if not np.isfinite(parts).all():
        raise FeatureError("parts must be finite, but one is NaN or infinite")
    if (parts < 0).any() or not (parts.sum(axis=1) > 0).all():
        raise FeatureError("Negative values in data: parts must be 0 or more, and above 0 in sum")
    if not np.isfinite(target).all() or (target <= 0).any():
        raise FeatureError("labels must be finite and above 0")
