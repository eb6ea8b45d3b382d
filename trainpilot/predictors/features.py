"""Scale-free features of a step: what kind of work it is, not how much of it.

Two groups. *Mix* features (shares of the priced work, intensities, the part of the backward pass, categories) stay the
same when all work is multiplied by a factor. *Size* features (mean work of a dispatch) grow with that factor; the
boosted correction may only rise with them, so that more of the same work is never predicted to take less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.terms import COMPUTE_CLASSES, STEP_TERM_NAMES, WORK_INDEX, WORK_TERM_NAMES
from trainpilot.workload.workload import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.table import WorkTable

_WORK_TERMS = [STEP_TERM_NAMES.index(name) for name in WORK_TERM_NAMES]
_CALL_TERMS = [STEP_TERM_NAMES.index(name) for name in ("calls", "optimizer_calls")]
_INTENSITIES = ("matmul", "attention", "conv", "depthwise_conv", "rnn")
_MEMORY_FORMATS = ("contiguous", "channels_last")

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
    work = priced[:, _WORK_TERMS]
    total = work.sum(axis=1, keepdims=True)
    shares = np.divide(work, total, out=np.zeros_like(work), where=total > 0)
    intensities = [np.log1p(_ratio(_column(table, f"flops.{c}"), _column(table, f"bytes.{c}"))) for c in _INTENSITIES]
    backward = _column(table, "flops@backward") + _column(table, "bytes@backward")
    forward = _column(table, "flops@forward") + _column(table, "bytes@forward")
    return np.column_stack([shares, *intensities, _ratio(backward, forward + backward)])


def scale_free(table: WorkTable, priced: NDArray[np.float64], categories: Categories) -> NDArray[np.float64]:
    """All features of the boosted correction, shape (n, len(feature_names(categories))); all finite.

    A category that is not listed has 0 in all its columns; callers refuse such steps first.
    """
    work = priced[:, _WORK_TERMS].sum(axis=1)
    dispatch = priced[:, _CALL_TERMS].sum(axis=1)
    compute_flops = sum(_column(table, f"flops.{c}") for c in COMPUTE_CLASSES)
    compute_calls = sum(_column(table, f"calls.{c}") for c in COMPUTE_CLASSES)
    sizes = [
        np.log1p(_ratio(work, dispatch)),
        np.log1p(_ratio(np.asarray(compute_flops), np.asarray(compute_calls))),
        np.log1p(_ratio(_column(table, "bytes.elementwise"), _column(table, "calls.elementwise"))),
    ]
    return np.column_stack(
        [
            mix(table, priced),
            np.log2([context.threads for context in table.context]),
            *_one_hot([context.dtype for context in table.context], categories.dtype),
            *_one_hot([context.memory_format for context in table.context], categories.memory_format),
            *_one_hot(list(table.optimizer), categories.optimizer),
            *sizes,
        ]
    )


def _column(table: WorkTable, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table.work[:, WORK_INDEX[name]]
    return values


def _ratio(amount: NDArray[np.float64], per: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amount per unit; 0 where there are no units, so that a class that does not occur is a number, not NaN."""
    return np.divide(amount, per, out=np.zeros(len(amount)), where=per > 0)


def _one_hot(values: Sequence[str], known: Sequence[str]) -> list[NDArray[np.float64]]:
    return [np.array([float(value == name) for value in values]) for name in known]


def _in_order(values: set[str], order: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(values, key=lambda value: (order.index(value) if value in order else len(order), value)))
