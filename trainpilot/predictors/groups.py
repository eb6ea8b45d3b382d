"""The operations of one step, group by group, as arrays: what the operator-level model looks at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from trainpilot.predictors.amounts import AMOUNT_INDEX, scaled_amounts
from trainpilot.profiling.result import OP_CLASSES, OpGroup
from trainpilot.workload.workload import DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.boosted import BoostedResidual

KINDS: tuple[str, ...] = OP_CLASSES
KIND_INDEX: Mapping[str, int] = {name: position for position, name in enumerate(KINDS)}

# Sizes of a call that grow with its work, and what tells calls of one size apart; names of ``OpGroup.shape``.
_SIZES = (
    *("batch", "cin", "cout", "elements", "heads", "hidden", "in_spatial", "k", "kernel", "key_length", "last"),
    *("length", "m", "n", "out_spatial", "rows", "steps", "vocabulary", "width"),
)
_MARKS = (
    *("causal", "dimensions", "gates", "grad_input", "grad_weight", "groups", "head_size", "input", "stride"),
    *("tensors", "transposed"),
)
_ABSENT = -1.0
_PHASE = {"forward": 0.0, "loss": 0.0, "backward": 1.0, "optimizer": 2.0}
RISING_GROUP_FEATURES: tuple[str, ...] = ("flops", "bytes", "thinnest", *_SIZES)
GROUP_FEATURES: tuple[str, ...] = (
    *RISING_GROUP_FEATURES,
    *("intensity", "phase"),
    *_MARKS,
    *(f"kind={name}" for name in KINDS),
)
OPERATOR_FEATURES: tuple[str, ...] = (*GROUP_FEATURES, "log2_threads", "dtype", "channels_last")


class GroupArrays(NamedTuple):
    """g groups, and their fine amounts as entries of a sparse table.

    Attributes:
        kind: Position in ``KINDS``, shape (g,).
        features: Shape (g, len(GROUP_FEATURES)) or, with those of the settings, (g, len(OPERATOR_FEATURES)).
        group: Group of each entry.
        column: Position in ``AMOUNTS`` of each entry.
        amount: Value of each entry.
    """

    kind: NDArray[np.intp]
    features: NDArray[np.float32]
    group: NDArray[np.intp]
    column: NDArray[np.intp]
    amount: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepGroups:
    """The operations of one step.

    Attributes:
        groups: Objects, or the dicts of a dataset row, with valid counts.
        batch_scale: Factor on the amounts of everything but the optimizer: the same model at another batch size.
    """

    groups: Sequence[OpGroup | Mapping[str, Any]]
    batch_scale: float = 1.0

    @cached_property
    def arrays(self) -> GroupArrays:
        """All groups with calls, in their order."""
        rows = [vars(group) if isinstance(group, OpGroup) else group for group in self.groups]
        return arrays_of([[row] for row in rows if row["calls"]], self.batch_scale)


def kind_of_group(group: Mapping[str, Any]) -> str:
    """The class of a group's operator; everything that an optimizer dispatches is one class."""
    return "optimizer" if group["phase"] == "optimizer" else str(group["op_class"])


def arrays_of(units: Sequence[Sequence[Mapping[str, Any]]], batch_scale: float = 1.0) -> GroupArrays:
    """Arrays of units that each consist of one group, or of several alike ones that were timed together."""
    entries = [
        (position, AMOUNT_INDEX[name], amount)
        for position, unit in enumerate(units)
        for group in unit
        for name, amount in scaled_amounts(group, batch_scale)
    ]
    return GroupArrays(
        kind=np.array([KIND_INDEX[kind_of_group(unit[0])] for unit in units], dtype=np.intp),
        features=_features([max(unit, key=_size) if len(unit) > 1 else unit[0] for unit in units]),
        group=np.array([entry[0] for entry in entries], dtype=np.intp),
        column=np.array([entry[1] for entry in entries], dtype=np.intp),
        amount=np.array([entry[2] for entry in entries], dtype=float),
    )


def _size(group: Mapping[str, Any]) -> float:
    return float(group["flops"]) + float(group["bytes_read"]) + float(group["bytes_written"])


def _features(groups: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
    """Features of each group, shape (g, len(GROUP_FEATURES)); sizes as logarithms."""
    sizes = np.array([_sizes(group) for group in groups], dtype=float).reshape(len(groups), _SIZE_COUNT)
    flops, traffic, calls = sizes[:, 0].copy(), sizes[:, 1].copy(), sizes[:, 2].copy()
    sizes[:, 0], sizes[:, 1] = flops / calls, traffic / calls
    product = sizes[:, _PRODUCT]
    sizes[:, 2] = np.where((product >= 0).all(axis=1), product.min(axis=1), _ABSENT)
    logs = np.where(sizes < 0, _ABSENT, np.log1p(np.maximum(sizes, 0.0)))
    rising, marks = logs[:, : len(RISING_GROUP_FEATURES)], logs[:, len(RISING_GROUP_FEATURES) :]
    phases = np.array([_PHASE[group["phase"]] for group in groups], dtype=float)
    kinds = np.array([KIND_INDEX[kind_of_group(group)] for group in groups], dtype=np.intp)
    intensity = np.log((flops + 1) / (traffic + 1))
    return np.column_stack([rising, intensity, phases, marks, np.eye(len(KINDS))[kinds]]).astype(np.float32)


_SIZE_COUNT = len(RISING_GROUP_FEATURES) + len(_MARKS)
_PRODUCT = [RISING_GROUP_FEATURES.index(name) for name in ("m", "n", "k")]
_NAMES = (*_SIZES, *_MARKS)


def _sizes(group: Mapping[str, Any]) -> list[float]:
    get = group["shape"].get
    traffic = group["bytes_read"] + group["bytes_written"]
    return [group["flops"], traffic, group["calls"], *[get(name, _ABSENT) for name in _NAMES]]


@dataclass(frozen=True, eq=False)
class Operations:
    """The operations of n steps in one sequence; steps that are the same in every respect are there once.

    Attributes:
        member: Distinct step of each step, shape (n,).
        context: Context of each distinct step, shape (d,).
        step: Distinct step of each of g groups.
        arrays: The groups, their features with those of the settings.
    """

    member: NDArray[np.intp]
    context: NDArray[np.object_]
    step: NDArray[np.intp]
    arrays: GroupArrays
    _factors: WeakKeyDictionary[BoostedResidual, NDArray[np.float64]] = field(default_factory=WeakKeyDictionary)

    def factors(self, boosted: BoostedResidual) -> NDArray[np.float64]:
        """What a boosted correction multiplies each group with, shape (g,); found once for each correction."""
        known = self._factors.get(boosted)
        if known is None:
            known = self._factors[boosted] = np.exp(boosted.predict_named(self.arrays.features, OPERATOR_FEATURES))
        return known

    @classmethod
    def of(cls, groups: NDArray[np.object_], contexts: NDArray[np.object_]) -> Operations:
        """Those of steps with these ``StepGroups`` and contexts."""
        known: dict[tuple[int, Any], int] = {}
        keys = zip(map(id, groups), contexts, strict=True)
        member = np.fromiter((known.setdefault(key, len(known)) for key in keys), dtype=np.intp, count=len(groups))
        first = np.unique(member, return_index=True)[1]
        arrays: list[GroupArrays] = [step.arrays for step in groups[first]]
        counts = np.array([len(each.kind) for each in arrays])
        offsets = np.cumsum(counts) - counts
        step = np.repeat(np.arange(len(arrays)), counts)
        joined = GroupArrays(*map(np.concatenate, zip(*arrays, strict=True)))
        joined = joined._replace(
            features=with_context(joined.features, contexts[first][step]),
            group=joined.group + np.repeat(offsets, [len(each.group) for each in arrays]),
        )
        return cls(member, contexts[first], step, joined)


def with_context(features: NDArray[np.float32], contexts: NDArray[np.object_]) -> NDArray[np.float32]:
    """Features of groups with those of the settings that each ran at, shape (g, len(OPERATOR_FEATURES))."""
    settings = {
        context: (np.log2(context.threads), DTYPES.index(context.dtype), context.memory_format == "channels_last")
        for context in set(contexts)
    }
    added = np.array([settings[context] for context in contexts], dtype=np.float32).reshape(len(features), 3)
    return np.ascontiguousarray(np.hstack([features, added]))
