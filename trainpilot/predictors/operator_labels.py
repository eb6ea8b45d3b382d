"""Times of single operators as labels: timings of the dataset, joined to the groups of the traces."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from trainpilot.predictors.amounts import AMOUNTS, base_name
from trainpilot.predictors.groups import arrays_of
from trainpilot.predictors.table import context_of_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.benchmarking import OperatorTiming
    from trainpilot.predictors.table import Context

Timings = Mapping[str, Sequence["OperatorTiming"]]
Sizes = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class OperatorLabels:
    """Timed groups of alike calls; all arrays have length n.

    Attributes:
        kind: Position in ``KINDS``.
        features: Shape (n, len(GROUP_FEATURES)).
        amounts: Fine amounts, sparse, shape (n, len(AMOUNTS)).
        context: Where and how they ran.
        time_s: Time of all calls of the group in one step, in s.
        workload_hash: Identity of the step that they are part of.
    """

    kind: NDArray[np.intp]
    features: NDArray[np.float32]
    amounts: csr_array
    context: NDArray[np.object_]
    time_s: NDArray[np.float64]
    workload_hash: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, workloads: Collection[str], contexts: Collection[Context] | None = None) -> OperatorLabels:
        """Those of these steps, where they ran in one of these contexts."""
        chosen = np.flatnonzero(np.isin(self.workload_hash.astype(str), sorted(workloads)))
        if contexts is not None:
            chosen = chosen[[context in contexts for context in self.context[chosen]]]
        return OperatorLabels(
            self.kind[chosen],
            self.features[chosen],
            self.amounts[chosen],
            self.context[chosen],
            self.time_s[chosen],
            self.workload_hash[chosen],
        )


def operator_labels(
    rows: Iterable[Mapping[str, Any]], timings: Timings, factors: Mapping[str, float]
) -> OperatorLabels | None:
    """Join timings to the operations of the traces.

    Calls are matched by operator, phase and sizes, and where sizes cannot tell them apart as a whole; what does not
    match in the number of calls is left out. Timings whose sum does not agree with their step are no labels.

    Args:
        rows: Rows of the timing dataset as dicts.
        timings: Operator timings by id of the row.
        factors: What the label of a row's configuration is to the step time of the row, by id of the row: what the
            machine did in general when the row was measured is divided out of its operators too.

    Returns:
        None if there is no label.
    """
    units: list[list[Mapping[str, Any]]] = []
    times: list[float] = []
    owners: list[Mapping[str, Any]] = []
    for row in rows:
        own = [timing for timing in timings.get(row["row_id"], ()) if timing.agrees]
        for unit, time_s in _matched(row["op_groups"], own):
            units.append(unit)
            times.append(time_s * factors[row["row_id"]])
            owners.append(row)
    if not units:
        return None
    arrays = arrays_of(units)
    contexts = np.empty(len(units), dtype=object)
    contexts[:] = [context_of_row(row) for row in owners]
    return OperatorLabels(
        arrays.kind,
        arrays.features,
        csr_array((arrays.amount, (arrays.group, arrays.column)), shape=(len(units), len(AMOUNTS))),
        contexts,
        np.array(times),
        np.array([row["workload_hash"] for row in owners], dtype=object),
    )


def _matched(
    groups: Sequence[Mapping[str, Any]], timings: Sequence[OperatorTiming]
) -> Iterable[tuple[list[Mapping[str, Any]], float]]:
    """Groups of a trace with their time."""
    timed: dict[tuple[str, str], dict[Sizes | None, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0]))
    for timing in timings:
        base = base_name(timing.op)
        found = timed[base, timing.phase][_sizes_of_shapes(base, timing.shapes)]
        found[0] += timing.calls
        found[1] += timing.time_s
    if not timed:
        return
    traced: dict[tuple[str, str], dict[Sizes | None, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for group in groups:
        base = base_name(group["op"])
        # The timing cannot tell the loss from the forward pass.
        phase = "forward" if group["phase"] == "loss" else group["phase"]
        traced[base, phase][_sizes_of_group(base, group["shape"])].append(group)
    for key, by_sizes in timed.items():
        there = traced.get(key, {})
        if by_sizes.keys() == there.keys() and all(
            sum(group["calls"] for group in there[sizes]) == calls for sizes, (calls, _) in by_sizes.items()
        ):
            yield from ((there[sizes], time_s) for sizes, (_, time_s) in by_sizes.items() if time_s > 0)
            continue
        together = [group for each in there.values() for group in each]
        total_s = sum(time_s for _, time_s in by_sizes.values())
        if together and total_s > 0 and sum(g["calls"] for g in together) == sum(c for c, _ in by_sizes.values()):
            yield together, total_s


def _sizes_of_group(base: str, shape: Mapping[str, int]) -> Sizes | None:
    """Sizes that a call's tensor shapes tell as well."""
    try:
        if base in ("convolution", "convolution_backward"):
            return tuple(shape[name] for name in ("n", "cin", "cout", "kernel", "in_spatial"))
        if base in ("mm", "addmm", "bmm"):
            return (shape.get("batch", 1), *(shape[name] for name in ("m", "n", "k")))
        return (shape["elements"],)
    except KeyError:
        return None


def _sizes_of_shapes(base: str, shapes: Sequence[Sequence[int]]) -> Sizes | None:
    """The same from the shapes of the tensor arguments."""
    try:
        if base in ("convolution", "convolution_backward"):
            images, weight = shapes[:2] if base == "convolution" else shapes[-2:]
            return (images[0], images[1], weight[0], math.prod(weight[2:]), math.prod(images[2:]))
        if base in ("mm", "addmm", "bmm"):
            left, right = shapes[-2:]
            return (left[0] if base == "bmm" else 1, left[-2], right[-1], left[-1])
        return (max(math.prod(shape) for shape in shapes),)
    except (IndexError, ValueError):
        return None
