"""The common shape of dataset rows and profiles, from which everything else is computed."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainpilot.errors import PredictorError
from trainpilot.predictors.groups import Operations, StepGroups
from trainpilot.predictors.terms import WORK_COLUMNS, measure_work, term_amounts

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from trainpilot.profiling import WorkloadProfile

_MOST_KNOWN = 256
_lock = threading.Lock()
_known: OrderedDict[tuple[Hashable, ...], tuple[Any, WorkTable]] = OrderedDict()

# Figures of the whole model that setup time and memory depend on; names of ``WorkloadProfile.features``.
FACTS = ("params", "param_bytes", "layers", "peak_bytes")


class Context(NamedTuple):
    """Where and how a step runs: each has its own rates."""

    machine_id: str
    backend: str
    threads: int
    dtype: str
    memory_format: str

    @property
    def setting(self) -> str:
        """The execution settings, in words."""
        return f"{self.threads} {'thread' if self.threads == 1 else 'threads'}, {self.dtype}, {self.memory_format}"


@dataclass(frozen=True)
class WorkTable:
    """n training steps, by column; all arrays have length n.

    Attributes:
        work: Amounts, shape (n, len(WORK_COLUMNS)).
        facts: Figures of the model, shape (n, len(FACTS)).
        batch_size: Samples per step.
        context: ``Context`` of each step.
        optimizer: Name of the optimizer.
        family: Family of the model.
        model_hash: Identity of the model.
        workload_hash: Identity of the training step.
        name: Name of the model.
        groups: ``StepGroups`` of each step.
    """

    work: NDArray[np.float64]
    facts: NDArray[np.float64]
    batch_size: NDArray[np.float64]
    context: NDArray[np.object_]
    optimizer: NDArray[np.object_]
    family: NDArray[np.object_]
    model_hash: NDArray[np.object_]
    workload_hash: NDArray[np.object_]
    name: NDArray[np.object_]
    groups: NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.work)

    @cached_property
    def terms(self) -> NDArray[np.float64]:
        """Amount of each term of ``STEP_TERMS``, shape (n, terms)."""
        return term_amounts(self.work)

    @cached_property
    def contexts(self) -> tuple[tuple[Context, ...], NDArray[np.intp]]:
        """The distinct contexts, and the position among them of that of each step, shape (n,)."""
        return distinct(self.context)

    @cached_property
    def operations(self) -> Operations:
        """What the operator-level model looks at."""
        return Operations.of(self.groups, self.context)

    def by_context(self, values: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """The value of each step's context, shape (n, k) or, where all have the same one, (1, k).

        Args:
            values: One for each of ``contexts``, each of shape (k,).
        """
        stacked = np.array(values)
        return stacked if len(values) == 1 else np.take(stacked, self.contexts[1], axis=0)

    def chunks(self, size: int) -> Iterator[WorkTable]:
        """The steps in parts of at most so many, which share the arrays."""
        if len(self) <= size:
            yield self
            return
        known, member = self.contexts
        for start in range(0, len(self), size):
            part = self.take(slice(start, start + size))
            # A cached property is an entry of the instance: what is known of all steps is known of these.
            part.__dict__["contexts"] = known, member[start : start + size]
            yield part

    def take(self, index: NDArray[Any] | slice) -> WorkTable:
        """The steps at these positions (or of this mask), in this order."""
        return WorkTable(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def distinct(contexts: NDArray[np.object_]) -> tuple[tuple[Context, ...], NDArray[np.intp]]:
    """The distinct ones of n contexts, and the position of each of the n among them."""
    known: dict[Context, int] = {}
    member = np.fromiter((known.setdefault(c, len(known)) for c in contexts), dtype=np.intp, count=len(contexts))
    return tuple(known), member


def check_features(features: Mapping[str, float]) -> None:
    """Refuse features that are not numbers.

    Raises:
        PredictorError: Names the first feature that is missing or not finite.
    """
    for name in FACTS:
        if name not in features:
            raise PredictorError(f"feature {name} is missing")
    for name, value in features.items():
        if value is None or not math.isfinite(value) or abs(value) > 1e30:
            raise PredictorError(f"feature {name} is not a finite number: {value}")


def table_of_profile(
    profile: WorkloadProfile, context: Context, *, batch_scale: float = 1.0, phases: Sequence[str] | None = None
) -> WorkTable:
    """One step that was traced but not run.

    Args:
        profile: The trace.
        context: Where and how it would run.
        batch_scale: The same model at ``batch_scale`` times the batch size (see ``measure_work``).
        phases: Only these parts of the step; default: all.

    Raises:
        PredictorError: A feature or a count is not finite; the text names it.
    """
    identity = (profile.optimizer, profile.family, profile.model_hash, profile.workload_hash, profile.name)
    parts = None if phases is None else tuple(phases)
    # The same trace is asked about for many settings and parts of a plan. It is told apart by the identity of what it
    # counted, which is kept alive while it is remembered.
    counted = profile.op_groups, profile.features
    key = (*map(id, counted), profile.batch_size, identity, context, batch_scale, parts)
    with _lock:
        found = _known.get(key)
        if found is not None:
            _known.move_to_end(key)
            return found[1]
    check_features(profile.features)
    groups = [group for group in profile.op_groups if parts is None or group.phase in parts]
    work = measure_work(groups, batch_scale)[None, :]
    work.setflags(write=False)
    table = WorkTable(
        work,
        np.array([[profile.features[name] for name in FACTS]]),
        np.array([profile.batch_size * batch_scale]),
        _objects([context]),
        *(_objects([part]) for part in (*identity, StepGroups(groups, batch_scale))),
    )
    with _lock:
        _known[key] = (counted, table)
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)
    return table


def table_of_frame(frame: pd.DataFrame) -> WorkTable:
    """The steps of a timing dataset, one per row in the same order.

    Args:
        frame: Columns as the fields of ``Measurement``; dict fields as Python dicts.

    Raises:
        PredictorError: A feature or a count is not finite; the text names it.
    """
    rows = records(frame)
    for row in rows:
        check_features(row["features"])
    return table_of_rows(rows, [measure_work(row["op_groups"]) for row in rows])


def table_of_rows(rows: Sequence[Mapping[str, Any]], work: Sequence[NDArray[np.float64]]) -> WorkTable:
    """The steps of rows of a timing dataset whose features were checked, in the same order.

    Args:
        rows: Dicts of the fields of ``Measurement``.
        work: What ``measure_work`` gives for each.
    """
    return WorkTable(
        np.array(work).reshape(len(rows), len(WORK_COLUMNS)),
        np.array([[float(row["features"][name]) for name in FACTS] for row in rows]).reshape(len(rows), len(FACTS)),
        np.array([float(row["batch_size"]) for row in rows]),
        _objects([context_of_row(row) for row in rows]),
        *map(
            _objects,
            (
                *(
                    [row[name] for row in rows]
                    for name in ("optimizer", "family", "model_hash", "workload_hash", "name")
                ),
                _groups_of_rows(rows),
            ),
        ),
    )


def _groups_of_rows(rows: Sequence[Mapping[str, Any]]) -> list[StepGroups]:
    """One object for all rows of a workload, whatever their settings: its trace is looked at once."""
    known: dict[str, StepGroups] = {}
    return [known.setdefault(row["workload_hash"], StepGroups(row["op_groups"])) for row in rows]


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def context_of_row(row: Mapping[str, Any]) -> Context:
    """Where and how a dataset row was measured."""
    return Context(row["machine_id"], row["backend"], int(row["threads"]), row["dtype"], row["memory_format"])


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    array = np.empty(len(values), dtype=object)
    # One by one: numpy would make a two-dimensional array of tuples of equal length.
    for position, value in enumerate(values):
        array[position] = value
    return array
