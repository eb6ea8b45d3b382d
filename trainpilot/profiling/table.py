"""A profile arranged for reading: totals, operator classes, the most expensive operations, memory, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainpilot.profiling.result import OP_CLASSES, OpGroup, WorkloadProfile


@dataclass(frozen=True)
class Row:
    """Work of one line of the table.

    Attributes:
        name: Phase, operator class or operation.
        calls: Dispatches.
        flops: Floating-point operations.
        bytes_moved: Bytes read and written.
        sizes: Sizes that decide speed, for a single operation.
    """

    name: str
    calls: int
    flops: int
    bytes_moved: int
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class ProfileTable:
    """Parts of the table, in the order in which they are read.

    Attributes:
        phases: forward, loss, backward, optimizer, and the whole step.
        classes: Operator classes that occur, most expensive first.
        operations: The most expensive operations, most expensive first.
        memory_bytes: Peak memory by part in bytes.
        uncounted: Operators without a formula, by calls.
        notes: What a reader of the counts should know.
    """

    phases: tuple[Row, ...]
    classes: tuple[Row, ...]
    operations: tuple[Row, ...]
    memory_bytes: Mapping[str, int]
    uncounted: Mapping[str, int]
    notes: tuple[str, ...]


# FLOPs that a CPU core does while it moves one byte: orders operations of both kinds in one list, nothing more.
_FLOPS_PER_BYTE = 5


def profile_table(profile: WorkloadProfile, operations: int = 10) -> ProfileTable:
    """Arrange a profile for reading.

    Args:
        profile: The profile.
        operations: Number of single operations to show.
    """
    groups = profile.op_groups
    phases = [
        _row(phase, (group for group in groups if group.phase == phase))
        for phase in ("forward", "loss", "backward", "optimizer")
    ]
    classes = [_row(name, (group for group in groups if group.op_class == name)) for name in OP_CLASSES]
    singles = [_row(f"{group.phase} {group.op}", (group,), group.shape) for group in groups]
    memory = profile.memory
    return ProfileTable(
        phases=(*phases, _row("step", groups)),
        classes=tuple(sorted((row for row in classes if row.calls), key=_expense, reverse=True)),
        operations=tuple(sorted(singles, key=_expense, reverse=True)[:operations]),
        memory_bytes={
            "weights": memory.weights_bytes,
            "buffers": memory.buffers_bytes,
            "gradients": memory.gradients_bytes,
            "optimizer": memory.optimizer_bytes,
            "activations": memory.activations_bytes,
            "workspace": memory.workspace_bytes,
            "peak": memory.peak_bytes,
        },
        uncounted=dict(profile.uncounted_ops),
        notes=profile.notes,
    )


def _row(name: str, groups: Iterable[OpGroup], sizes: Mapping[str, int] | None = None) -> Row:
    calls = flops = moved = 0
    for group in groups:
        calls += group.calls
        flops += group.flops
        moved += group.bytes_read + group.bytes_written
    return Row(name, calls, flops, moved, sizes or {})


def _expense(row: Row) -> tuple[float, int]:
    return row.flops / _FLOPS_PER_BYTE + row.bytes_moved, row.calls
