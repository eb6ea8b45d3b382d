"""Import, export, merge and verify: the timing dataset as Parquet files and as other stores."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainpilot.benchmarking import STATUSES, Measurement, OperatorTiming
from trainpilot.errors import DataError, StoreCorruptError, StoreError, StoreSchemaError, UsageError
from trainpilot.files import replacing
from trainpilot.store.schema import (
    SCHEMA_VERSION,
    field_kinds,
    from_columns,
    operator_columns,
    operator_from_columns,
    to_columns,
)
from trainpilot.store.store import TimingStore, open_store

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_SCHEMA_KEY = b"trainpilot_schema"
_OPERATORS_SUFFIX = ".operators.parquet"
_MOST_PROBLEMS = 50
_TIMES = ("step_time_s", "first_step_s", "setup_time_s", "data_time_s", "cpu_time_s", "energy_j")
_ORDERED_QUANTILES = ("min", "p10", "p25", "median", "p75", "p90", "max")


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What was found in a dataset.

    Attributes:
        name: The file or store.
        rows: Rows by status.
        configurations: Different configurations with at least one ``ok`` row.
        families: Different families among the ``ok`` rows.
        operators: Operator timings.
        problems: What is wrong, a line each; empty if nothing.
    """

    name: str
    rows: dict[str, int]
    configurations: int
    families: int
    operators: int
    problems: tuple[str, ...]


def operators_path(path: Path) -> Path:
    """Where the operator timings of a Parquet dataset lie: beside it."""
    return path.with_suffix(_OPERATORS_SUFFIX)


def export_parquet(store: TimingStore, path: str | Path, **filters: Any) -> int:
    """Write rows to a Parquet file, and their operator timings to ``<name>.operators.parquet`` beside it.

    Dict and list fields become JSON texts. Both files are replaced as a whole or not at all.

    Args:
        store: Where the rows are.
        path: The file.
        filters: Value, or list of values, by name of a column.

    Returns:
        Number of rows written.

    Raises:
        UnknownNameError: A filter names no column.
        UsageError: The file has another ending than ``.parquet``, by which it is known when it is read.
        DataError: The file cannot be written.
        StoreError: The store cannot be read.
    """
    path = Path(path)
    if path.suffix != ".parquet" or path.name.endswith(_OPERATORS_SUFFIX):
        raise UsageError(f"{path}: name a file that ends in .parquet (and not in {_OPERATORS_SUFFIX})")
    rows = [to_columns(row) for row in store.rows(**filters)]
    kept = {row["row_id"] for row in rows}
    operators = [operator_columns(row_id, timing) for row_id, timing in store.all_operators() if row_id in kept]
    _write(path, rows, _measurement_schema())
    _write(operators_path(path), operators, _operator_schema())
    return len(rows)


def import_parquet(path: str | Path, store: TimingStore) -> tuple[int, int]:
    """Add the rows of a Parquet file, and the operator timings beside it, to a store.

    Returns:
        Rows added, and rows that the store had already.

    Raises:
        DataError: The file cannot be read, or its rows are damaged.
        StoreSchemaError: It has another schema.
        StoreError: The store cannot be written.
    """
    path = Path(path)
    operators = _read_operators(path)
    added = known = 0
    for row in _read(path):
        if store.append(row, operators.get(row.row_id, ())):
            added += 1
        else:
            known += 1
    return added, known


def merge(sources: Iterable[str | Path], store: TimingStore) -> tuple[int, int]:
    """Add the rows of Parquet files and of other SQLite stores.

    Returns:
        Rows added, and rows that the store had already.

    Raises:
        DataError: A source does not exist or cannot be read.
        StoreSchemaError: A source has another schema.
        StoreError: A store cannot be read or written.
    """
    added = known = 0
    for source in map(Path, sources):
        if source.suffix == ".parquet":
            new, old = import_parquet(source, store)
        else:
            new, old = _merge_store(source, store)
        added, known = added + new, known + old
    return added, known


def dataset_rows(source: str | Path) -> list[Measurement]:
    """Rows of a dataset on disk, without taking them into a store.

    Args:
        source: A Parquet file, a folder of them, or a SQLite file.

    Raises:
        DataError: The source does not exist, holds no Parquet file, or cannot be read.
        StoreSchemaError: It has another schema.
        StoreError: A row is damaged.
    """
    path = Path(source)
    if path.is_dir():
        files = _parquet_files(path)
        if not files:
            raise DataError(f"{path} holds no Parquet file")
        return [row for file in files for row in _read(file)]
    if path.suffix == ".parquet":
        return list(_read(path))
    with closing(_open_existing(path)) as store:
        return list(store.rows())


def dataset_frame(source: str | Path, status: str | None = "ok") -> pd.DataFrame:
    """The same as a table (see ``TimingStore.frame``), rows of simulated backends left out.

    Args:
        source: A Parquet file, a folder of them, or a SQLite file.
        status: Only rows with this status; None for all.

    Raises:
        DataError: The source does not exist, holds no Parquet file, or cannot be read.
        StoreSchemaError: It has another schema.
        StoreError: A row is damaged.
    """
    import pandas as pd

    names = list(field_kinds())
    rows = [row for row in dataset_rows(source) if status in (None, row.status) and not row.simulated]
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)


def dataset_operators(source: str | Path) -> dict[str, list[OperatorTiming]]:
    """Operator timings of a dataset on disk, by id of the row.

    Args:
        source: A Parquet file, a folder of them, or a SQLite file.

    Raises:
        DataError: The source does not exist or cannot be read.
        StoreSchemaError: It has another schema.
        StoreError: A row is damaged.
    """
    path = Path(source)
    if path.is_dir():
        found: dict[str, list[OperatorTiming]] = {}
        for file in _parquet_files(path):
            found |= _read_operators(file)
        return found
    if path.suffix == ".parquet":
        return _read_operators(path)
    with closing(_open_existing(path)) as store:
        return store.operators_by_row()


def _parquet_files(folder: Path) -> list[Path]:
    """Datasets in a folder, without the operator timings beside them."""
    return sorted(file for file in folder.glob("*.parquet") if not file.name.endswith(_OPERATORS_SUFFIX))


def verify(source: str | Path | TimingStore) -> VerifyReport:
    """Check every row of a dataset.

    Args:
        source: A Parquet file, a SQLite file, or an open store.

    Raises:
        DataError: The source does not exist or cannot be read.
        StoreSchemaError: It has another schema.
        StoreError: A store cannot be read.
    """
    if isinstance(source, TimingStore):
        return _verify_store(source)
    path = Path(source)
    if path.suffix == ".parquet":
        operators = _read_operators(path)
        count = sum(len(timings) for timings in operators.values())
        return _verify(str(path), _read(path), set(operators), count, [])
    with closing(_open_existing(path)) as store:
        return _verify_store(store)


def _verify_store(store: TimingStore) -> VerifyReport:
    problems = store.integrity_problems()
    owners = Counter(row_id for row_id, _ in store.all_operators())
    return _verify(store.name, store.rows(), set(owners), owners.total(), problems)


def _verify(
    name: str, rows: Iterable[Measurement], owners: set[str], operators: int, problems: list[str]
) -> VerifyReport:
    counts: Counter[str] = Counter()
    ids: set[str] = set()
    keys: set[tuple[str, int]] = set()
    configurations: set[str] = set()
    families: set[str] = set()
    for row in rows:
        counts[row.status] += 1
        problems.extend(f"row {row.row_id}: {problem}" for problem in row_problems(row))
        if row.row_id in ids:
            problems.append(f"row {row.row_id}: the id is there twice")
        ids.add(row.row_id)
        if row.origin == "benchmark":
            key = (row.config_key, row.repetition)
            if key in keys:
                problems.append(f"row {row.row_id}: repetition {row.repetition} of its configuration is there twice")
            keys.add(key)
        if row.status == "ok":
            configurations.add(row.config_key)
            families.add(row.family)
    problems.extend(f"operator timings of row {row_id}: there is no such row" for row_id in sorted(owners - ids))
    if len(problems) > _MOST_PROBLEMS:
        problems = [*problems[:_MOST_PROBLEMS], f"and {len(problems) - _MOST_PROBLEMS} more"]
    return VerifyReport(name, dict(counts), len(configurations), len(families), operators, tuple(problems))


def row_problems(row: Measurement) -> Iterator[str]:
    """What cannot be right in a row."""
    if row.status not in STATUSES:
        yield f"unknown status {row.status!r}"
    if row.batch_size < 1:
        yield f"batch_size {row.batch_size}"
    if row.threads < 1:
        yield f"threads {row.threads}"
    for name in _TIMES:
        value = getattr(row, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"{name} {value}"
    if row.status != "ok":
        if row.step_time_s is not None:
            yield f"status {row.status} with a step time"
        if not row.reason:
            yield f"status {row.status} without a reason"
        return
    if row.step_time_s is None or not row.step_time_s > 0:
        yield f"status ok with step_time_s {row.step_time_s}"
    if row.origin == "benchmark":
        if row.steps < 1:
            yield "status ok without a timed step"
        if not row.features:
            yield "status ok without features"
    quantiles = [row.step_quantiles_s[name] for name in _ORDERED_QUANTILES if name in row.step_quantiles_s]
    if quantiles != sorted(quantiles):
        yield "the quantiles are not in order"
    bad = [name for name, value in row.features.items() if not math.isfinite(value)]
    if bad:
        yield f"feature {bad[0]} is not finite"


def _merge_store(path: Path, store: TimingStore) -> tuple[int, int]:
    added = known = 0
    with closing(_open_existing(path)) as source:
        for row in source.rows():
            if store.append(row, source.operators(row.row_id)):
                added += 1
            else:
                known += 1
    return added, known


def _open_existing(path: Path) -> TimingStore:
    if not path.is_file():
        raise DataError(f"there is no dataset {path}")
    return open_store(f"sqlite:///{path}")


def _measurement_schema() -> pa.Schema:
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "json": pa.string()}
    fields = [pa.field(name, types[kind.kind], nullable=kind.optional) for name, kind in field_kinds().items()]
    return pa.schema(fields, metadata={_SCHEMA_KEY: str(SCHEMA_VERSION).encode()})


def _operator_schema() -> pa.Schema:
    import pyarrow as pa

    types = {"row_id": pa.string(), "calls": pa.int64(), "time_s": pa.float64(), "agreement": pa.float64()}
    names = ["row_id", *(field.name for field in dataclasses.fields(OperatorTiming))]
    fields = [pa.field(name, pa.bool_() if name == "agrees" else types.get(name, pa.string())) for name in names]
    return pa.schema(fields, metadata={_SCHEMA_KEY: str(SCHEMA_VERSION).encode()})


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=schema)
    try:
        with replacing(path) as file:
            pq.write_table(table, file, compression="zstd")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from None


def _read_table(path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataError(f"there is no dataset {path}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise StoreCorruptError(f"{path} is damaged or no Parquet file: {' '.join(str(error).split())}") from None
    version = (table.schema.metadata or {}).get(_SCHEMA_KEY)
    if version is None:
        raise StoreSchemaError(f"{path} is no timing dataset: it does not tell its schema version")
    if version != str(SCHEMA_VERSION).encode():
        raise StoreSchemaError(
            f"{path} has schema {version.decode(errors='replace')}, this version of TrainPilot knows {SCHEMA_VERSION}"
        )
    return table


def _read(path: Path) -> Iterator[Measurement]:
    table = _read_table(path)
    missing = [name for name in field_kinds() if name not in table.column_names]
    if missing:
        raise StoreSchemaError(f"{path} has no column {missing[0]}")
    for batch in table.to_batches(max_chunksize=500):
        for number, values in enumerate(batch.to_pylist()):
            try:
                yield from_columns(values)
            except (ValueError, TypeError) as error:
                raise StoreError(f"{path}: row {values.get('row_id', number)} cannot be read: {error}") from None


def _read_operators(path: Path) -> dict[str, list[OperatorTiming]]:
    beside = operators_path(path)
    found: dict[str, list[OperatorTiming]] = {}
    if beside.is_file():
        for values in _read_table(beside).to_pylist():
            found.setdefault(values["row_id"], []).append(operator_from_columns(values))
    return found
