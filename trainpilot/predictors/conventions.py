"""What scikit-learn expects of an estimator, and its errors as those of the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import sklearn.exceptions
from sklearn.utils.validation import validate_data

from trainpilot.errors import FeatureError, NotFittedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class UnfittedError(NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """The library's error, and scikit-learn's too: its own tools tell an unfitted estimator by that."""


def checked_training_data(estimator: Any, X: Any, y: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # noqa: N803
    """Features, shape (n, features), and labels, shape (n,); the estimator remembers the number of features.

    Whether the features are finite is left to the estimator, which knows their names.

    Raises:
        FeatureError: They are no table and labels of the same length, or a label is not finite.
        TypeError: A value is no number.
    """
    try:
        # It adds the labels up to see whether they are finite: infinities of both signs are told by its error alone.
        with np.errstate(invalid="ignore"):
            values, labels = validate_data(
                estimator, X, y, dtype="float64", y_numeric=True, ensure_all_finite=False, order="C"
            )
    except ValueError as error:
        raise FeatureError(str(error)) from error
    return values, labels.astype(float)


def checked_features(estimator: Any, X: Any, *, finite: bool) -> NDArray[np.float64]:  # noqa: N803
    """Features of a fitted estimator, shape (n, features).

    Args:
        estimator: The estimator.
        X: The features.
        finite: Whether to refuse what is not finite; else the estimator does, which knows the names.

    Raises:
        FeatureError: They are no table, have another number of columns than those of the fit, or are not finite.
        TypeError: A value is no number.
    """
    try:
        values: NDArray[np.float64] = validate_data(
            estimator, X, dtype="float64", reset=False, ensure_all_finite=finite, order="C"
        )
    except ValueError as error:
        raise FeatureError(str(error)) from error
    return values
