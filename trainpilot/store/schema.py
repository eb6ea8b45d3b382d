"""Tables of the timing dataset. One column per field of ``Measurement``; units stand in names and comments."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from trainpilot.benchmarking import Measurement, OperatorTiming

SCHEMA_VERSION = 1

METADATA = MetaData()

VERSION_TABLE = Table("trainpilot_schema", METADATA, Column("version", Integer, primary_key=True))

_COMMENTS = {
    "created_at": "seconds since the epoch",
    "model_settings": "JSON",
    "input_signature": "JSON: [[shape, dtype], ...]",
    "features": "JSON: numbers by name",
    "op_groups": "JSON: the table of operations of one step",
    "machine": "JSON: description of the machine",
    "calibration": "JSON: figures by name, in FLOP/s, bytes/s and s",
    "versions": "JSON: library versions by name",
    "cpu_utilization": "of everything else on the machine, 0 to 1",
    "step_time_s": "s per step: the label",
    "step_quantiles_s": "JSON: quantiles of the windows in s per step",
    "first_step_s": "s",
    "setup_time_s": "s",
    "data_time_s": "s per batch",
    "cpu_time_s": "CPU s per step",
    "peak_memory_bytes": "bytes",
    "energy_j": "J per step",
    "control_time_s": "s",
}


@dataclasses.dataclass(frozen=True)
class FieldKind:
    """How a field of ``Measurement`` is stored.

    Attributes:
        kind: ``str``, ``int``, ``float``, ``bool`` or ``json``.
        optional: Whether it may be missing.
    """

    kind: Literal["str", "int", "float", "bool", "json"]
    optional: bool


@cache
def field_kinds() -> Mapping[str, FieldKind]:
    """Kind of every field of ``Measurement``, in order, read from its annotations."""
    hints = get_type_hints(Measurement)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(Measurement)}


def _kind(hint: Any) -> FieldKind:
    arguments = get_args(hint)
    if get_origin(hint) in (types.UnionType, typing.Union):
        inner = [argument for argument in arguments if argument is not type(None)]
        return FieldKind(_kind(inner[0]).kind, optional=True)
    if get_origin(hint) is Literal or hint is str:
        return FieldKind("str", optional=False)
    for plain in (bool, int, float):
        if hint is plain:
            return FieldKind(plain.__name__, optional=False)
    return FieldKind("json", optional=False)


# Counts of bytes exceed 32 bits, so that every whole number has 64.
_TYPES: Mapping[str, Any] = {"str": String, "int": BigInteger, "float": Double, "bool": Boolean, "json": Text}


def _columns() -> list[Column[Any]]:
    return [
        Column(
            name,
            _TYPES[kind.kind](),
            primary_key=name == "row_id",
            nullable=kind.optional,
            comment=_COMMENTS.get(name),
        )
        for name, kind in field_kinds().items()
    ]


MEASUREMENTS = Table("measurements", METADATA, *_columns())

# A sweep that two harnesses run at once measures a row twice, but keeps it once. Training runs repeat freely.
Index(
    "one_row_per_repetition",
    MEASUREMENTS.c.config_key,
    MEASUREMENTS.c.repetition,
    unique=True,
    sqlite_where=MEASUREMENTS.c.origin == "benchmark",
    postgresql_where=MEASUREMENTS.c.origin == "benchmark",
)

OPERATOR_TIMINGS = Table(
    "operator_timings",
    METADATA,
    Column("row_id", String, ForeignKey("measurements.row_id"), nullable=False, index=True),
    Column("op", String, nullable=False),
    Column("phase", String, nullable=False),
    Column("op_class", String, nullable=False),
    Column("shapes", Text, nullable=False, comment="JSON: shape of each tensor argument"),
    Column("calls", Integer, nullable=False, comment="calls per step"),
    Column("time_s", Double, nullable=False, comment="s of all calls in one step"),
    Column("agreement", Double, nullable=False, comment="calibrated sum of the step's operators / step time"),
    Column("agrees", Boolean, nullable=False),
)


def to_columns(measurement: Measurement) -> dict[str, Any]:
    """Values of the columns of one row.

    Raises:
        ValueError: A number is not finite, or a value is no JSON.
    """
    values: dict[str, Any] = {}
    for name, kind in field_kinds().items():
        value = getattr(measurement, name)
        if kind.kind == "json":
            value = json.dumps(value, allow_nan=False, separators=(",", ":"))
        elif kind.kind == "str" and value is not None:
            value = _storable(value)
        elif kind.kind == "float" and value is not None:
            value = float(value)
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError(f"{name} is {value}: only finite numbers are kept")
        values[name] = value
    return values


def _storable(value: str) -> str:
    """A text that every database takes: half characters, as in file names that are no UTF-8, and NUL are escaped."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")


def from_columns(values: Mapping[str, Any]) -> Measurement:
    """The row that ``to_columns`` took apart.

    Raises:
        ValueError: A JSON column is damaged.
    """
    kinds = field_kinds()
    return Measurement(
        **{name: json.loads(values[name]) if kind.kind == "json" else values[name] for name, kind in kinds.items()}
    )


def operator_columns(row_id: str, timing: OperatorTiming) -> dict[str, Any]:
    """Values of the columns of one operator timing."""
    return {"row_id": row_id} | dataclasses.asdict(timing) | {"shapes": json.dumps(timing.shapes)}


def operator_from_columns(values: Mapping[str, Any]) -> OperatorTiming:
    """The timing that ``operator_columns`` took apart."""
    fields = {field.name: values[field.name] for field in dataclasses.fields(OperatorTiming)}
    return OperatorTiming(**fields | {"shapes": json.loads(values["shapes"])})
