"""The labelled timing dataset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine

from trainpilot.benchmarking import Measurement, OperatorTiming
from trainpilot.benchmarking.execute import TRACE_FIELDS
from trainpilot.errors import MeasurementError, StoreCorruptError, UnknownNameError
from trainpilot.settings import load_settings
from trainpilot.store.engine import open_engine, reading, require_writable, shown, writing
from trainpilot.store.schema import (
    MEASUREMENTS,
    OPERATOR_TIMINGS,
    field_kinds,
    from_columns,
    operator_columns,
    operator_from_columns,
    to_columns,
)

if TYPE_CHECKING:
    import pandas as pd

_BATCH = 500
_TRACING_VERSIONS = ("trainpilot", "torch")


@dataclasses.dataclass(frozen=True)
class SweepEntry:
    """What the store holds of one sweep.

    Attributes:
        sweep_id: The sweep, or ``training``.
        rows: Rows by status.
        configurations: Different configurations.
        first_at: Time of the first row, seconds since the epoch.
        last_at: Time of the last row.
    """

    sweep_id: str
    rows: Mapping[str, int]
    configurations: int
    first_at: float
    last_at: float


class TimingStore:
    """Keeps measurements in a database; every row is durable when ``append`` returns.

    Many processes may write and read at the same time. As a context manager it closes itself.

    Args:
        engine: A connected engine (see ``open_store``).
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def name(self) -> str:
        """The file or URL, for messages."""
        return shown(self._engine.url)

    def require_writable(self) -> None:
        """Refuse a store that can only be read.

        Raises:
            StoreError: It cannot be written.
        """
        require_writable(self._engine)

    def append(self, measurement: Measurement, operators: Sequence[OperatorTiming] = ()) -> bool:
        """Keep one row and the operator timings that belong to it.

        Args:
            measurement: The row.
            operators: Its operator timings.

        Returns:
            False if the row, or a benchmark row of the same configuration and repetition, is there already.

        Raises:
            MeasurementError: A number of the row is not finite.
            StoreError: It cannot be written.
        """
        try:
            values = to_columns(measurement)
        except (TypeError, ValueError) as error:
            raise MeasurementError(f"row {measurement.row_id} cannot be kept: {error}") from None
        dialect = postgresql if self._engine.dialect.name == "postgresql" else sqlite
        statement = (
            dialect.insert(MEASUREMENTS).values(values).on_conflict_do_nothing().returning(MEASUREMENTS.c.row_id)
        )
        with writing(self._engine) as connection:
            if connection.execute(statement).first() is None:
                return False
            if operators:
                rows = [operator_columns(measurement.row_id, timing) for timing in operators]
                connection.execute(insert(OPERATOR_TIMINGS), rows)
        return True

    def rows(self, **filters: Any) -> Iterator[Measurement]:
        """Rows in the order in which they were taken.

        Args:
            filters: Value, or list of values, by name of a column.

        Raises:
            UnknownNameError: There is no such column.
            StoreCorruptError: A row is damaged.
        """
        for values in self._values(_selection(filters)):
            yield self._row(values)

    def frame(self, status: str | None = "ok", simulated: bool | None = False, **filters: Any) -> pd.DataFrame:
        """Rows as a table with one column per field of ``Measurement``; dict and list fields are Python objects.

        Args:
            status: Only rows with this status; None for all.
            simulated: Only rows of simulated (True) or real backends (False); None for all.
            filters: Value, or list of values, by name of a column.

        Raises:
            UnknownNameError: There is no such column.
            StoreCorruptError: A row is damaged.
        """
        if status is not None:
            filters["status"] = status
        if simulated is not None:
            filters["simulated"] = simulated
        names = list(field_kinds())
        rows = [[getattr(row, name) for name in names] for row in self.rows(**filters)]
        import pandas as pd  # only now: rows that cannot be read are told at once

        return pd.DataFrame(rows, columns=names)

    def operators(self, row_id: str) -> list[OperatorTiming]:
        """Operator timings of one row."""
        statement = select(OPERATOR_TIMINGS).where(OPERATOR_TIMINGS.c.row_id == row_id)
        return [self._operator(values) for values in self._values(statement)]

    def all_operators(self) -> Iterator[tuple[str, OperatorTiming]]:
        """(row_id, operator timing) of all rows."""
        for values in self._values(select(OPERATOR_TIMINGS)):
            yield values["row_id"], self._operator(values)

    def operators_by_row(self) -> dict[str, list[OperatorTiming]]:
        """Operator timings of all rows, by id of the row."""
        found: dict[str, list[OperatorTiming]] = {}
        for row_id, timing in self.all_operators():
            found.setdefault(row_id, []).append(timing)
        return found

    def operator_frame(self, agrees: bool | None = True) -> pd.DataFrame:
        """All operator timings with the ``row_id`` that they belong to.

        Args:
            agrees: Only those whose sum agrees with the step (True) or not (False); None for all.
        """
        import pandas as pd

        statement = select(OPERATOR_TIMINGS)
        if agrees is not None:
            statement = statement.where(OPERATOR_TIMINGS.c.agrees == agrees)
        found = [
            {"row_id": values["row_id"]} | dataclasses.asdict(self._operator(values))
            for values in self._values(statement)
        ]
        names = ["row_id", *(field.name for field in dataclasses.fields(OperatorTiming))]
        return pd.DataFrame(found, columns=names)

    def trace_of(self, config_key: str, versions: Mapping[str, str]) -> dict[str, Any] | None:
        """The latest trace that a row of this configuration holds (``execute.TRACE_FIELDS``), or None without one.

        Args:
            config_key: The configuration.
            versions: Versions of the libraries in use. A trace counts what TrainPilot's formulas and PyTorch's
                operators say, so that one of another version of either is left alone.

        Raises:
            StoreCorruptError: The row is damaged.
        """
        columns = [MEASUREMENTS.c[name] for name in ("row_id", "versions", *TRACE_FIELDS)]
        statement = select(*columns).where(MEASUREMENTS.c.config_key == config_key, MEASUREMENTS.c.op_groups != "[]")
        kinds = field_kinds()
        for values in self._values(statement.order_by(MEASUREMENTS.c.created_at.desc(), MEASUREMENTS.c.row_id)):
            try:
                made_by = json.loads(values["versions"])
                if any(made_by.get(name) != versions.get(name) for name in _TRACING_VERSIONS):
                    continue
                return {
                    name: json.loads(values[name]) if kinds[name].kind == "json" else values[name]
                    for name in TRACE_FIELDS
                }
            except (json.JSONDecodeError, TypeError, AttributeError) as error:
                raise self._damaged(values, error) from None
        return None

    def finished_keys(self) -> set[tuple[str, int]]:
        """(config_key, repetition) of all benchmark rows, whatever their status."""
        columns = MEASUREMENTS.c
        statement = select(columns.config_key, columns.repetition).where(columns.origin == "benchmark")
        return {(values["config_key"], values["repetition"]) for values in self._values(statement)}

    def count(self, **filters: Any) -> int:
        """Number of rows."""
        statement = _where(select(func.count()).select_from(MEASUREMENTS), filters)
        with reading(self._engine) as connection:
            return int(connection.execute(statement).scalar_one())

    def sweeps(self) -> list[SweepEntry]:
        """What is there, sweep by sweep, the latest last."""
        columns = MEASUREMENTS.c
        counts = select(columns.sweep_id, columns.status, func.count().label("rows")).group_by(
            columns.sweep_id, columns.status
        )
        spans = select(
            columns.sweep_id,
            func.count(columns.config_key.distinct()).label("configurations"),
            func.min(columns.created_at).label("first_at"),
            func.max(columns.created_at).label("last_at"),
        ).group_by(columns.sweep_id)
        by_status: dict[str, dict[str, int]] = {}
        for values in self._values(counts):
            by_status.setdefault(values["sweep_id"], {})[values["status"]] = values["rows"]
        entries = [
            SweepEntry(
                sweep_id=values["sweep_id"],
                rows=by_status.get(values["sweep_id"], {}),
                configurations=values["configurations"],
                first_at=values["first_at"],
                last_at=values["last_at"],
            )
            for values in self._values(spans)
        ]
        return sorted(entries, key=lambda entry: entry.last_at)

    def integrity_problems(self) -> list[str]:
        """What the database itself finds wrong with its file; empty if nothing.

        Raises:
            StoreCorruptError: The file is too damaged to be examined.
        """
        if self._engine.dialect.name != "sqlite":
            return []
        with reading(self._engine) as connection:
            found = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(20)")]
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Close all connections; may be called twice."""
        self._engine.dispose()

    def __enter__(self) -> TimingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _values(self, statement: Select[Any]) -> Iterator[Mapping[str, Any]]:
        with reading(self._engine) as connection:
            for part in connection.execution_options(yield_per=_BATCH).execute(statement).mappings().partitions():
                for values in part:
                    yield dict(values)

    def _row(self, values: Mapping[str, Any]) -> Measurement:
        try:
            return from_columns(values)
        except (json.JSONDecodeError, TypeError) as error:
            raise self._damaged(values, error) from None

    def _operator(self, values: Mapping[str, Any]) -> OperatorTiming:
        try:
            return operator_from_columns(values)
        except (json.JSONDecodeError, TypeError) as error:
            raise self._damaged(values, error) from None

    def _damaged(self, values: Mapping[str, Any], error: Exception) -> StoreCorruptError:
        return StoreCorruptError(f"the store {self.name} is damaged: row {values['row_id']} cannot be read: {error}")


def open_store(url: str | None = None) -> TimingStore:
    """Open the timing dataset, creating it if there is none; for reading only where it cannot be written.

    Args:
        url: SQLAlchemy URL (SQLite or PostgreSQL); default: that of the settings (``TRAINPILOT_STORE``).

    Raises:
        UsageError: The URL is none, or of a database that is not supported.
        StoreCorruptError: The file is damaged; it is left as it is.
        StoreSchemaError: The store has another schema.
        StoreError: It cannot be opened or created.
    """
    return TimingStore(open_engine(url or load_settings().store_url))


def list_sweeps(store: TimingStore) -> list[SweepEntry]:
    """What the store holds, sweep by sweep, the latest last."""
    return store.sweeps()


def _selection(filters: Mapping[str, Any]) -> Select[Any]:
    return _where(select(MEASUREMENTS), filters).order_by(MEASUREMENTS.c.created_at, MEASUREMENTS.c.row_id)


def _where(statement: Select[Any], filters: Mapping[str, Any]) -> Select[Any]:
    for name, value in filters.items():
        kind = field_kinds().get(name)
        if kind is None or kind.kind == "json":
            raise UnknownNameError("column", name, [n for n, k in field_kinds().items() if k.kind != "json"])
        column = MEASUREMENTS.c[name]
        if isinstance(value, list | tuple | set | frozenset):
            statement = statement.where(column.in_(list(value)))
        else:
            statement = statement.where(column == value)
    return statement
