"""The operations of one step, group by group, as arrays: what the operator-level model looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trainpilot.predictors.amounts import AMOUNT_INDEX, FIXED_AMOUNTS, fine_amounts
from trainpilot.profiling.result import OP_CLASSES, OpGroup

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class GroupArrays(NamedTuple):
    """g groups, and their fine amounts as entries of a sparse table.

    Attributes:
        kind: Position in ``KINDS``, shape (g,).
        features: Shape (g, len(GROUP_FEATURES)).
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
    entries: list[tuple[int, int, float]] = []
    for position, unit in enumerate(units):
        for group in unit:
            scale = 1.0 if group["phase"] == "optimizer" else batch_scale
            entries.extend(
                (position, AMOUNT_INDEX[name], amount if name in FIXED_AMOUNTS else amount * scale)
                for name, amount in fine_amounts(group)
            )
    rows = [_features(max(unit, key=_size)) for unit in units]
    return GroupArrays(
        kind=np.array([KIND_INDEX[kind_of_group(unit[0])] for unit in units], dtype=np.intp),
        features=np.array(rows, dtype=np.float32).reshape(len(units), len(GROUP_FEATURES)),
        group=np.array([entry[0] for entry in entries], dtype=np.intp),
        column=np.array([entry[1] for entry in entries], dtype=np.intp),
        amount=np.array([entry[2] for entry in entries], dtype=float),
    )


def _size(group: Mapping[str, Any]) -> float:
    return float(group["flops"]) + float(group["bytes_read"]) + float(group["bytes_written"])


def _features(group: Mapping[str, Any]) -> list[float]:
    shape, calls = group["shape"], group["calls"]
    flops, traffic = group["flops"], float(group["bytes_read"]) + float(group["bytes_written"])
    product = [shape[name] for name in ("m", "n", "k") if name in shape]
    thinnest = math.log1p(min(product)) if len(product) == 3 else _ABSENT
    sizes = [math.log1p(flops / calls), math.log1p(traffic / calls), thinnest, *(_log(shape, name) for name in _SIZES)]
    marks = [math.log((flops + 1) / (traffic + 1)), _PHASE[group["phase"]], *(_log(shape, name) for name in _MARKS)]
    kind = kind_of_group(group)
    return [*sizes, *marks, *(float(name == kind) for name in KINDS)]


def _log(shape: Mapping[str, Any], name: str) -> float:
    value = shape.get(name)
    return _ABSENT if value is None else math.log1p(max(0.0, float(value)))
