"""Training data in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainpilot.errors import DataError, UsageError
from trainpilot.zoo.data.validation import validate_arrays

Array = NDArray[Any]
VALIDATION_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Labelled samples, a part of them held out.

    Attributes:
        x_train: Training samples, shape (n, ...); float32, or whole numbers for token ids and raw pixels.
        y_train: Labels from 0 to ``classes - 1``, int64 of shape (n,).
        x_val: Held-out samples; may hold none.
        y_val: Their labels.
        classes: Number of classes.
        name: What the data is called.
        source: ``real``, or ``synthetic`` for generated samples.
    """

    x_train: Array
    y_train: Array
    x_val: Array
    y_val: Array
    classes: int
    name: str
    source: Literal["real", "synthetic"] = "real"

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x_train.shape[1:])


def training_data(
    x: Array,
    y: Array,
    x_val: Array | None = None,
    y_val: Array | None = None,
    *,
    classes: int | None = None,
    name: str = "arrays",
    source: Literal["real", "synthetic"] = "real",
    validation_share: float = VALIDATION_SHARE,
    seed: int = 0,
) -> TrainingData:
    """Check arrays and make training data of them.

    Args:
        x: Samples, shape (n, ...).
        y: Labels, shape (n,).
        x_val: Held-out samples; without them a part of ``x`` is held out, each class by the same share.
        y_val: Their labels.
        classes: Number of classes; default: the largest label plus one.
        name: What the data is called.
        source: Where it comes from.
        validation_share: Share that is held out where ``x_val`` is not given; 0 holds nothing out.
        seed: Decides which samples are held out.

    Raises:
        DataError: The arrays cannot be used (see ``validate_arrays``), or only one of ``x_val`` and ``y_val`` is given.
        UsageError: ``validation_share`` is not from 0 to less than 1.
    """
    if not 0 <= validation_share < 1:
        raise UsageError(f"validation_share must be at least 0 and less than 1, got {validation_share}")
    if (x_val is None) != (y_val is None):
        missing = "X_val" if x_val is None else "y_val"
        raise DataError(f"{name}: {missing} is missing: held-out data needs both X_val and y_val")
    x, y = validate_arrays(x, y, classes)
    if x_val is None or y_val is None:
        train, held_out = stratified_split(y, validation_share, seed)
        x, x_val, y, y_val = x[train], x[held_out], y[train], y[held_out]
    else:
        x_val, y_val = validate_arrays(x_val, y_val, classes, names=("X_val", "y_val"))
        if x_val.shape[1:] != x.shape[1:]:
            raise DataError(f"X_val has samples of shape {x_val.shape[1:]}, X_train of shape {x.shape[1:]}")
        if not np.isin(y_val, y).any():
            # A rare class may be held out only, but labels that have nothing in common are a mistake.
            raise DataError(f"no label of y_val is in y_train: y_val[0] is {y_val[0]}, y_train ends at {y.max()}")
    if classes is None and y.min() == y.max() and np.isin(y_val, y).all():
        raise DataError(f"{name}: all labels are {y[0]}; a classifier needs at least two classes")
    highest = int(max(y.max(), y_val.max(initial=0)))
    found = highest + 1 if classes is None else classes
    return TrainingData(x_train=x, y_train=y, x_val=x_val, y_val=y_val, classes=found, name=name, source=source)


def stratified_split(y: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Split sample numbers so that each class gives the same share, rounded; at least one sample a class stays.

    Args:
        y: Labels, shape (n,).
        share: Share of the second part.
        seed: Decides the choice.

    Returns:
        Sorted sample numbers of the first and of the second part.
    """
    generator = np.random.default_rng(seed)
    held_out = [np.empty(0, dtype=np.int64)]
    for label in np.unique(y):
        members = generator.permutation(np.flatnonzero(y == label))
        held_out.append(members[: min(round(share * len(members)), len(members) - 1)])
    second = np.sort(np.concatenate(held_out))
    return np.setdiff1d(np.arange(len(y)), second), second
