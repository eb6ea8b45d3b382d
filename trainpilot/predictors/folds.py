"""Which steps are held out together, so that an error is always that of workloads the predictor has not seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

Kind = Literal["family", "model", "size", "machine"]

# Single operators are there to identify prices. They are no models, so they are always trained on and never judged.
OPERATOR_FAMILY = "operator"
_MOST_FAMILY_FOLDS = 12
_MODEL_FOLDS = 5
_LEAST_MODELS_FOR_SIZE = 10


@dataclass(frozen=True)
class Fold:
    """Steps that are held out together.

    Attributes:
        kind: ``family`` (leave one family out), ``model`` (a fifth of the models), ``size`` (the largest or the
            smallest models), ``machine`` (leave one machine out).
        name: What is held out, in words.
        held: Positions that are held out.
        train: Positions that the predictor is fitted on; no model is in both, except for ``machine``.
    """

    kind: Kind
    name: str
    held: NDArray[np.intp]
    train: NDArray[np.intp]


def family_groups(table: WorkTable) -> NDArray[np.object_]:
    """Family of each step; models of users have no family in common, so each is one of its own."""
    return np.array(
        [
            f"custom {model}" if family == "custom" else family
            for family, model in zip(table.family, table.model_hash, strict=True)
        ],
        dtype=object,
    )


def family_folds(table: WorkTable, most: int = _MOST_FAMILY_FOLDS) -> list[Fold]:
    """Leave one family out, or some at a time where there are more than ``most``; empty if there are fewer than two."""
    families = family_groups(table)
    names = sorted(set(families) - {OPERATOR_FAMILY})
    if len(names) < 2:
        return []
    bins = [names[start::most] for start in range(min(len(names), most))]
    return [_fold(table, "family", ", ".join(group), _among(families, group)) for group in bins]


def model_folds(table: WorkTable, folds: int = _MODEL_FOLDS) -> list[Fold]:
    """Hold out models at random, all rows of a model together; empty if there are fewer than two."""
    judged = family_groups(table) != OPERATOR_FAMILY
    # Hashes are as good as random numbers, and the same on every run.
    models = sorted(set(table.model_hash[judged]))
    if len(models) < 2:
        return []
    return [
        _fold(table, "model", f"models {start + 1} of {folds}", _among(table.model_hash, models[start::folds]) & judged)
        for start in range(min(folds, len(models)))
    ]


def size_folds(
    table: WorkTable, size: NDArray[np.float64], *, share: float = 0.2, smallest: bool = False
) -> list[Fold]:
    """Hold out the largest models, and perhaps the smallest; empty if there are fewer than ten models.

    Args:
        table: n steps.
        size: What is called large, shape (n,).
        share: Part of the models that is held out.
        smallest: Whether the smallest ones are a fold too.
    """
    judged = family_groups(table) != OPERATOR_FAMILY
    models = sorted(set(table.model_hash[judged]))
    if len(models) < _LEAST_MODELS_FOR_SIZE:
        return []
    sizes: dict[str, list[float]] = {}
    for model, value in zip(table.model_hash, size, strict=True):
        sizes.setdefault(model, []).append(value)
    ordered = sorted(models, key=lambda model: (float(np.median(sizes[model])), model))
    count = max(1, round(share * len(ordered)))
    ends = [
        (f"largest {share:.0%}", ordered[-count:]),
        *([(f"smallest {share:.0%}", ordered[:count])] if smallest else []),
    ]
    return [_fold(table, "size", name, _among(table.model_hash, part) & judged) for name, part in ends]


def _fold(table: WorkTable, kind: Kind, name: str, mask: NDArray[np.bool_]) -> Fold:
    train = ~mask & ~_among(table.model_hash, table.model_hash[mask])
    return Fold(kind, name, np.flatnonzero(mask), np.flatnonzero(train))


def _among(values: NDArray[np.object_], chosen: Iterable[str]) -> NDArray[np.bool_]:
    """Whether each text is one of some; much faster than ``np.isin``, which sorts objects."""
    known = set(chosen)
    return np.fromiter((value in known for value in values), dtype=bool, count=len(values))
