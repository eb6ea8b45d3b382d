"""Going through arrays in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainpilot.errors import DataError, UsageError

Array = NDArray[Any]


def batches(
    x: Array, y: Array, batch_size: int, *, seed: int | None = None, drop_last: bool = False
) -> Iterator[tuple[Array, Array]]:
    """Go through the samples once.

    Args:
        x: Samples, shape (n, ...).
        y: Labels, shape (n, ...).
        batch_size: Samples in a batch; the last one may be smaller.
        seed: Shuffles; the same seed gives the same order. None keeps the order.
        drop_last: Leave out the last batch if it is smaller.

    Returns:
        Iterator over copies (x[batch], y[batch]).

    Raises:
        UsageError: ``batch_size`` is below 1, or no full batch exists and ``drop_last`` is set.
        DataError: The arrays have different lengths.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    if len(x) != len(y):
        raise DataError(f"x has {len(x)} samples but y has {len(y)} labels")
    if drop_last and batch_size > len(x):
        raise UsageError(f"batch_size {batch_size} is larger than the {len(x)} samples and drop_last leaves no batch")
    order = np.arange(len(x)) if seed is None else np.random.default_rng(seed).permutation(len(x))
    end = len(x) - len(x) % batch_size if drop_last else len(x)
    return ((x[order[i : i + batch_size]], y[order[i : i + batch_size]]) for i in range(0, end, batch_size))
