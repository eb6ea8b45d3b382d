"""What a training step does, as a few physical amounts, and what each costs before anything was measured.

One step is a list of operation groups (``OpGroup``, or the same as a dict in a dataset row). Both are added up by
class of operator into the columns ``WORK_COLUMNS``; a *term* is a sum of such columns that has one price: so many
FLOPs at a rate, bytes at a bandwidth, or dispatches at a cost each. Time is the sum of amount times price.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trainpilot.errors import PredictorError
from trainpilot.predictors.amounts import AMOUNTS, scaled_amounts
from trainpilot.predictors.prices import Price, first_known
from trainpilot.profiling.result import OP_CLASSES, OpGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray

Quantity = Literal["flops", "bytes", "calls"]
QUANTITIES: tuple[Quantity, ...] = ("flops", "bytes", "calls")
PHASES = ("forward", "loss", "backward", "optimizer")

# Phase totals carry an "@", because "optimizer" is both a class and a phase; fine amounts carry a ":".
WORK_COLUMNS: tuple[str, ...] = (
    *(f"{quantity}.{name}" for quantity in QUANTITIES for name in OP_CLASSES),
    *(f"{quantity}@{phase}" for quantity in QUANTITIES for phase in PHASES),
    *(f"fine:{name}" for name in AMOUNTS),
)
WORK_INDEX: Mapping[str, int] = {name: position for position, name in enumerate(WORK_COLUMNS)}

_FINE_COLUMN: Mapping[str, int] = {name: WORK_INDEX[f"fine:{name}"] for name in AMOUNTS}
# By phase and class, for each quantity: the columns of the class and of the phase. Optimizers dispatch the same kernels
# as everything else, but over long lists: they have their own price.
_COLUMNS_OF_GROUP: Mapping[tuple[str, str], tuple[tuple[int, int], ...]] = {
    (phase, op_class): tuple(
        (
            WORK_INDEX[f"{quantity}.{'optimizer' if phase == 'optimizer' else op_class}"],
            WORK_INDEX[f"{quantity}@{phase}"],
        )
        for quantity in QUANTITIES
    )
    for phase in PHASES
    for op_class in OP_CLASSES
}
_FIRST_FINE = WORK_INDEX[f"fine:{AMOUNTS[0]}"]

# A count above this is a fault of the trace: it is beyond a year of the largest computer in one step.
LARGEST_COUNT = 1e26

COMPUTE_CLASSES = ("matmul", "attention", "conv", "depthwise_conv", "rnn")


@dataclass(frozen=True)
class Term:
    """One additive part of the step time.

    Attributes:
        name: Name, part of the predictor's card.
        quantity: What is counted; ``step`` is 1 for every step.
        classes: Classes of operators that are added up; empty for ``step``.
        prices: What one unit costs before any row is known: the first price whose figure was probed counts.
    """

    name: str
    quantity: Literal["flops", "bytes", "calls", "step"]
    classes: tuple[str, ...]
    prices: tuple[Price, ...]

    def unit_cost_s(self, figures: Mapping[str, float]) -> float:
        """Price of one unit in s.

        Raises:
            PredictorError: The calibration lacks the figure, or it is not above 0.
        """
        return first_known(self.prices, figures)


def _traffic(name: str, classes: tuple[str, ...], figure: str, dearness: float) -> Term:
    return Term(name, "bytes", classes, (Price(figure), Price("memory_bytes_per_s", dearness)))


# Where a kind of work has no figure of its own, the factor says by what order it misses a rate that was probed with
# large, regular operands. All prices are starting values: rows correct them.
STEP_TERMS: tuple[Term, ...] = (
    Term("matmul_flops", "flops", ("matmul", "other"), (Price("matmul_flops_per_s"),)),
    Term(
        "attention_flops",
        "flops",
        ("attention",),
        (Price("attention_flops_per_s"), Price("matmul_flops_per_s", 2.0)),
    ),
    Term("conv_flops", "flops", ("conv",), (Price("conv_flops_per_s"),)),
    Term(
        "depthwise_flops",
        "flops",
        ("depthwise_conv",),
        (Price("depthwise_conv_flops_per_s"), Price("conv_flops_per_s", 8.0)),
    ),
    Term("rnn_flops", "flops", ("rnn",), (Price("rnn_flops_per_s"), Price("matmul_flops_per_s", 2.0))),
    # The rates above contain the traffic of large operands; this is what small and thin ones cost more.
    Term("compute_bytes", "bytes", COMPUTE_CLASSES, (Price("memory_bytes_per_s", 0.5),)),
    # Not the elementwise probe: its operands stay in the cache, those of a real step do not.
    Term("elementwise_bytes", "bytes", ("elementwise", "other"), (Price("memory_bytes_per_s", 1.5),)),
    _traffic("copy_bytes", ("copy",), "copy_bytes_per_s", 1.5),
    _traffic("norm_bytes", ("norm",), "batch_norm_bytes_per_s", 1.5),
    _traffic("softmax_bytes", ("softmax",), "softmax_bytes_per_s", 2.0),
    _traffic("reduction_bytes", ("reduction",), "reduction_bytes_per_s", 1.5),
    _traffic("pool_bytes", ("pool",), "pool_bytes_per_s", 3.0),
    _traffic("embedding_bytes", ("embedding",), "embedding_bytes_per_s", 1.5),
    _traffic("random_bytes", ("random",), "random_bytes_per_s", 4.0),
    _traffic("optimizer_bytes", ("optimizer",), "optimizer_bytes_per_s", 1.0),
    Term("calls", "calls", tuple(name for name in OP_CLASSES if name != "optimizer"), (Price("dispatch_s", 1.5),)),
    Term("optimizer_calls", "calls", ("optimizer",), (Price("dispatch_s", 2.5),)),
    Term("step", "step", (), (Price("step_overhead_s", 0.5),)),
)
_SUMMED_TERMS = [position for position, term in enumerate(STEP_TERMS) if term.quantity != "step"]
_COLUMNS_OF_TERMS = [[WORK_INDEX[f"{term.quantity}.{name}"] for name in term.classes] for term in STEP_TERMS]
_SUMMED_COLUMNS = [column for position in _SUMMED_TERMS for column in _COLUMNS_OF_TERMS[position]]
_SUMMED_STARTS = np.cumsum([0, *(len(_COLUMNS_OF_TERMS[position]) for position in _SUMMED_TERMS[:-1])])
STEP_TERM_NAMES: tuple[str, ...] = tuple(term.name for term in STEP_TERMS)
# Work grows with the size of a step; dispatches and the fixed cost do not.
WORK_TERM_NAMES: tuple[str, ...] = tuple(term.name for term in STEP_TERMS if term.quantity in ("flops", "bytes"))

# Where a machine was never probed: about one core of a 2020s server. Only their ratios matter once rows are known.
REFERENCE_FIGURES: Mapping[str, float] = {
    "matmul_flops_per_s": 5e10,
    "conv_flops_per_s": 3e10,
    "memory_bytes_per_s": 1e10,
    "dispatch_s": 4e-6,
    "step_overhead_s": 2e-4,
}


def measure_work(groups: Iterable[OpGroup | Mapping[str, Any]], batch_scale: float = 1.0) -> NDArray[np.float64]:
    """Add up the operations of one step.

    Args:
        groups: The table of operations, as objects or as the dicts of a dataset row.
        batch_scale: Factor on the FLOPs and bytes of everything but the optimizer: the same model at another batch
            size. FLOPs are proportional to the batch; bytes are nearly so, weights being the smaller part.

    Returns:
        Amounts in the order of ``WORK_COLUMNS``, shape (len(WORK_COLUMNS),).

    Raises:
        PredictorError: A count is missing, not finite, negative or absurd, or a class or phase is unknown.
    """
    amounts = [0.0] * len(WORK_COLUMNS)  # a list, because adding to one entry of an array takes several times as long
    for group in groups:
        row = vars(group) if isinstance(group, OpGroup) else group
        try:
            phase, op_class = row["phase"], row["op_class"]
            counts = (
                float(row["flops"]),
                float(row["bytes_read"]) + float(row["bytes_written"]),
                float(row["calls"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PredictorError(f"operation group {row.get('op')!r}: no valid {error}") from None
        columns = _COLUMNS_OF_GROUP.get((phase, op_class))
        if columns is None:
            raise PredictorError(f"operation group {row.get('op')!r}: unknown class {op_class!r} or phase {phase!r}")
        scale = 1.0 if phase == "optimizer" else batch_scale
        for quantity, count, (of_class, of_phase) in zip(QUANTITIES, counts, columns, strict=True):
            if not 0 <= count <= LARGEST_COUNT:  # false for NaN too
                raise PredictorError(f"feature {quantity}.{op_class} is not a valid count: {count} ({row.get('op')})")
            scaled = count if quantity == "calls" else count * scale
            amounts[of_class] += scaled
            amounts[of_phase] += scaled
        for name, amount in scaled_amounts(row, batch_scale):
            amounts[_FINE_COLUMN[name]] += amount
    if any(amounts):
        amounts[WORK_INDEX["fine:step"]] = 1.0
    return np.array(amounts)


def term_amounts(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """Amount of each term of ``STEP_TERMS``.

    Args:
        work: Shape (n, len(WORK_COLUMNS)).

    Returns:
        Shape (n, len(STEP_TERMS)).
    """
    amounts = np.ones((len(work), len(STEP_TERMS)))
    # Sums in a fixed order, so that a step has the same amounts in whatever batch it comes.
    amounts[:, _SUMMED_TERMS] = np.add.reduceat(np.take(work, _SUMMED_COLUMNS, axis=1), _SUMMED_STARTS, axis=1)
    return amounts


def fine_columns(work: NDArray[np.float64]) -> NDArray[np.float64]:
    """The fine amounts of n steps in the order of ``AMOUNTS``, shape (n, len(AMOUNTS))."""
    return work[:, _FIRST_FINE:]


def unit_costs_s(figures: Mapping[str, float]) -> NDArray[np.float64]:
    """Price of one unit of each term of ``STEP_TERMS`` in s, by calibration figures alone."""
    return np.array([term.unit_cost_s(figures) for term in STEP_TERMS])
