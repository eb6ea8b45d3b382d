"""Checks of labelled arrays, with one clear line each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainpilot.errors import DataError

Array = NDArray[Any]


def validate_arrays(
    X: Any,  # noqa: N803
    y: Any,
    classes: int | None = None,
    *,
    names: tuple[str, str] = ("X_train", "y_train"),
) -> tuple[Array, Array]:
    """Check samples and labels, and return them as training uses them.

    Args:
        X: Samples of shape (n, ...), numbers; at least one, with at least one value each.
        y: Class labels of shape (n,): whole numbers from 0; floats that are whole numbers are accepted.
        classes: Number of classes, if known.
        names: How messages call the two arrays.

    Returns:
        X as float32 (whole numbers keep their type, since they may be token ids) and y as int64.

    Raises:
        DataError: The arrays are empty, of different length, no numbers, or not finite; or a label is no whole
            number, negative, or not below ``classes``.
    """
    x_name, y_name = names
    return _samples(as_array(X, x_name), x_name, _labels(as_array(y, y_name), y_name, classes), y_name)


def as_array(value: Any, name: str) -> Array:
    """Return the value as one array.

    Raises:
        DataError: It holds lists of different lengths.
    """
    try:
        return np.asarray(value)
    except ValueError:  # numpy's text tells of its internals
        raise DataError(f"{name} must be one array of numbers: its rows differ in length or shape") from None


def _samples(x: Array, name: str, y: Array, y_name: str) -> tuple[Array, Array]:
    if x.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold numbers, got dtype {x.dtype}")
    if x.ndim < 2:
        raise DataError(f"{name} must have shape (samples, ...) with at least two dimensions, got {x.shape}")
    if x.size == 0:
        raise DataError(f"{name} is empty: its shape is {x.shape}")
    if len(x) != len(y):
        raise DataError(f"{name} has {len(x)} samples but {y_name} has {len(y)} labels")
    if x.dtype.kind == "b":
        return x.astype(np.float32), y
    if x.dtype.kind != "f":
        return x, y
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is reported as such
        single = np.ascontiguousarray(x, dtype=np.float32)
    bad = ~np.isfinite(single)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        value = x[place]
        kind = "NaN" if np.isnan(value) else "infinite" if np.isinf(value) else f"{value:g}, too large for float32"
        raise DataError(f"{name} is not finite: {int(bad.sum())} of {x.size} values, first at {place}: {kind}")
    return single, y


def _labels(y: Array, name: str, classes: int | None) -> Array:
    if y.ndim == 2 and y.shape[1] > 1:
        raise DataError(f"{name} must have shape (samples,), got {y.shape}; for one-hot rows give y.argmax(1)")
    if y.ndim != 1:
        raise DataError(f"{name} must have shape (samples,), got {y.shape}")
    if y.size == 0:
        raise DataError(f"{name} is empty")
    if y.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold whole numbers, one class per sample, got dtype {y.dtype}")
    if y.dtype.kind == "f":
        wrong = ~(np.isfinite(y) & (y == np.round(y)))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise DataError(f"{name} must hold whole numbers, one class per sample; {name}[{first}] is {y[first]}")
    if (y < 0).any():
        first = int(np.argmax(y < 0))
        raise DataError(f"{name} must not be negative; {name}[{first}] is {y[first]}")
    limit = np.iinfo(np.int64).max if classes is None else classes
    if (y >= limit).any():
        first = int(np.argmax(y >= limit))
        raise DataError(f"{name} must be below the number of classes, {limit}; {name}[{first}] is {y[first]}")
    return y.astype(np.int64)
