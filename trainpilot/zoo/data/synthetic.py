"""Generated training data that a model can learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainpilot.errors import UsageError
from trainpilot.zoo.data.training_data import TrainingData, training_data

_NOISE = 0.5
_SIGNAL_SHARE = 0.5


def synthetic(
    *,
    shape: Sequence[int] | None = None,
    tokens: int | None = None,
    vocabulary: int = 1000,
    classes: int = 10,
    size: int = 1000,
    seed: int = 0,
    validation_share: float = 0.2,
) -> TrainingData:
    """Generate labelled samples.

    Float samples are a random pattern of their class plus normal noise of standard deviation 0.5. Token samples draw
    half of their ids from a share of the vocabulary that belongs to their class, and the rest from all of it. Classes
    are as even as ``size`` allows.

    Args:
        shape: Shape of one float sample; or
        tokens: length of one sequence of token ids (int64).
        vocabulary: Number of different ids, at least ``classes``.
        classes: Number of classes, at least 2.
        size: Number of samples, held-out ones included; at least ``classes``.
        seed: The same seed gives the same data.
        validation_share: Share of each class that is held out.

    Raises:
        UsageError: Neither or both of ``shape`` and ``tokens`` are given, or a number is too small.
    """
    if (shape is None) == (tokens is None):
        raise UsageError("synthetic data: give either the shape of one sample or a number of tokens")
    sizes = tuple(shape) if shape is not None else (tokens,)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise UsageError(f"synthetic data: sizes must be whole numbers of at least 1, got {sizes}")
    if classes < 2 or size < classes:
        raise UsageError(f"synthetic data: at least 2 classes and as many samples as classes, got {classes} and {size}")
    generator = np.random.default_rng(seed)
    y = generator.permutation(np.arange(size, dtype=np.int64) % classes)
    if shape is not None:
        pattern = generator.standard_normal((classes, *sizes), dtype=np.float32)
        x = pattern[y] + _NOISE * generator.standard_normal((size, *sizes), dtype=np.float32)
    else:
        if vocabulary < classes:
            raise UsageError(f"synthetic data: a vocabulary of {vocabulary} is too small for {classes} classes")
        own_ids = vocabulary // classes
        own = y[:, None] * own_ids + generator.integers(0, own_ids, (size, *sizes))
        any_id = generator.integers(0, vocabulary, (size, *sizes))
        x = np.where(generator.random((size, *sizes)) < _SIGNAL_SHARE, own, any_id)
    return training_data(
        x, y, classes=classes, name="synthetic", source="synthetic", validation_share=validation_share, seed=seed
    )
