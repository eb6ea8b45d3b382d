"""Scale-free features of a step: what kind of work it is, not how much of it.

Two groups. *Mix* features (shares of the priced work, intensities, the part of the backward pass, categories) stay the
same when all work is multiplied by a factor. *Size* features (mean work of a dispatch) grow with that factor; the
boosted correction may only rise with them, so that more of the same work is never predicted to take less time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.terms import COMPUTE_CLASSES, STEP_TERM_NAMES, WORK_INDEX, WORK_TERM_NAMES
from trainpilot.workload.workload import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import Context, WorkTable

_WORK_TERMS = [STEP_TERM_NAMES.index(name) for name in WORK_TERM_NAMES]
_CALL_TERMS = [STEP_TERM_NAMES.index(name) for name in ("calls", "optimizer_calls")]
_INTENSITIES = ("matmul", "attention", "conv", "depthwise_conv", "rnn")
_MEMORY_FORMATS = ("contiguous", "channels_last")

_INTENSITY_FLOPS, _INTENSITY_BYTES = (
    [WORK_INDEX[f"{quantity}.{name}"] for name in _INTENSITIES] for quantity in ("flops", "bytes")
)
_COMPUTE_FLOPS, _COMPUTE_CALLS = (
    [WORK_INDEX[f"{quantity}.{name}"] for name in COMPUTE_CLASSES] for quantity in ("flops", "calls")
)
_FORWARD, _BACKWARD = (
    [WORK_INDEX[f"{quantity}@{phase}"] for quantity in ("flops", "bytes")] for phase in ("forward", "backward")
)

SHARE_FEATURES: tuple[str, ...] = tuple(f"share.{name}" for name in WORK_TERM_NAMES)
MIX_FEATURES: tuple[str, ...] = (
    *SHARE_FEATURES,
    *(f"intensity.{name}" for name in _INTENSITIES),
    "backward_share",
)
SIZE_FEATURES: tuple[str, ...] = ("size.step", "size.compute", "size.stream")


@dataclass(frozen=True)
class Categories:
    """Values that a predictor has seen, in order; the features that encode them.

    Attributes:
        threads: Numbers of CPU threads.
        dtype: Compute types.
        memory_format: Memory formats.
        optimizer: Optimizers.
    """

    threads: tuple[int, ...]
    dtype: tuple[str, ...]
    memory_format: tuple[str, ...]
    optimizer: tuple[str, ...]

    @classmethod
    def of(cls, table: WorkTable) -> Categories:
        """The values in a table."""
        return cls(
            threads=tuple(sorted({context.threads for context in table.context})),
            dtype=_in_order({context.dtype for context in table.context}, DTYPES),
            memory_format=_in_order({context.memory_format for context in table.context}, _MEMORY_FORMATS),
            optimizer=tuple(sorted(set(table.optimizer))),
        )


def feature_names(categories: Categories) -> tuple[str, ...]:
    """Names of the columns of ``scale_free``, in order."""
    return (
        *MIX_FEATURES,
        "log2_threads",
        *(f"dtype={value}" for value in categories.dtype),
        *(f"memory_format={value}" for value in categories.memory_format),
        *(f"optimizer={value}" for value in categories.optimizer),
        *SIZE_FEATURES,
    )


def mix(table: WorkTable, priced: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mix features without categories, shape (n, len(MIX_FEATURES)); all finite.

    Args:
        table: n steps.
        priced: Terms at calibration prices in s, shape (n, len(STEP_TERMS)).
    """
    work = np.take(priced, _WORK_TERMS, axis=1)
    mixes = np.zeros((len(work), len(MIX_FEATURES)))
    total = work.sum(axis=1, keepdims=True)
    first = len(SHARE_FEATURES)
    np.divide(work, total, out=mixes[:, :first], where=total > 0)
    mixes[:, first:-1] = np.log1p(_ratio(table.work[:, _INTENSITY_FLOPS], table.work[:, _INTENSITY_BYTES]))
    backward = _sum(table.work, _BACKWARD)
    mixes[:, -1] = _ratio(backward, backward + _sum(table.work, _FORWARD))
    return mixes


def scale_free(
    table: WorkTable, priced: NDArray[np.float64], categories: Categories, mixes: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """All features of the boosted correction, shape (n, len(feature_names(categories))); all finite.

    A category that is not listed has 0 in all its columns; callers refuse such steps first.

    Args:
        table: n steps.
        priced: Terms at calibration prices in s, shape (n, len(STEP_TERMS)).
        categories: The values that have a column.
        mixes: What ``mix`` gave for these steps, if it is at hand.
    """
    settings = [_setting_features(context, categories) for context in table.contexts[0]]
    optimizers = len(categories.optimizer)
    after_settings = len(MIX_FEATURES) + len(settings[0])
    features = np.zeros((len(table), after_settings + optimizers + len(SIZE_FEATURES)))
    features[:, : len(MIX_FEATURES)] = mix(table, priced) if mixes is None else mixes
    features[:, len(MIX_FEATURES) : after_settings] = table.by_context(settings)
    # One column more than there are optimizers, for those without one; the sizes overwrite it.
    column = {name: position for position, name in enumerate(categories.optimizer)}
    positions = np.fromiter((column.get(name, optimizers) for name in table.optimizer), dtype=np.intp, count=len(table))
    features[np.arange(len(table)), after_settings + positions] = 1.0
    amounts = np.column_stack(
        [
            _sum(priced, _WORK_TERMS),
            _sum(table.work, _COMPUTE_FLOPS),
            table.work[:, WORK_INDEX["bytes.elementwise"]],
        ]
    )
    per = np.column_stack(
        [
            _sum(priced, _CALL_TERMS),
            _sum(table.work, _COMPUTE_CALLS),
            table.work[:, WORK_INDEX["calls.elementwise"]],
        ]
    )
    features[:, -len(SIZE_FEATURES) :] = np.log1p(_ratio(amounts, per))
    return features


def _sum(amounts: NDArray[np.float64], columns: list[int]) -> NDArray[np.float64]:
    """Sum of some columns; as C-ordered copies they are added in the same order in whatever batch a step comes."""
    total: NDArray[np.float64] = np.take(amounts, columns, axis=1).sum(axis=1)
    return total


def _ratio(amount: NDArray[np.float64], per: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amount per unit; 0 where there are no units, so that a class that does not occur is a number, not NaN."""
    return np.divide(amount, per, out=np.zeros(amount.shape), where=per > 0)


@functools.lru_cache(maxsize=256)
def _setting_features(context: Context, categories: Categories) -> NDArray[np.float64]:
    """Number of threads and one-hot encoded settings of a context."""
    return np.array(
        [
            np.log2(context.threads),
            *(float(context.dtype == value) for value in categories.dtype),
            *(float(context.memory_format == value) for value in categories.memory_format),
        ]
    )


def _in_order(values: set[str], order: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(values, key=lambda value: (order.index(value) if value in order else len(order), value)))
