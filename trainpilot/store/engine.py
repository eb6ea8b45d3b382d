"""Connections to the store: SQLite as it is safe for many writers, PostgreSQL, and errors in one line."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event, false, insert, inspect, select, text, update
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from trainpilot.errors import StoreCorruptError, StoreError, StoreSchemaError, UsageError
from trainpilot.store.schema import METADATA, SCHEMA_VERSION, VERSION_TABLE

_BUSY_TIMEOUT_MS = 30_000
_HEADER = b"SQLite format 3\x00"
_CORRUPT_SIGNS = ("not a database", "malformed", "disk i/o error", "unsupported file format", "file is encrypted")
# Any number will do: it only has to be the same in all processes that create the tables.
_CREATION_LOCK = 7_240_313


def open_engine(url: str) -> Engine:
    """Connect to a store, creating it if there is none.

    A file that this process may not write is opened for reading only.

    Raises:
        UsageError: The URL is none, or of a database that is not supported.
        StoreCorruptError: The file is damaged; it is left as it is.
        StoreSchemaError: The store has another schema.
        StoreError: It cannot be opened or written.
    """
    parsed = _parse(url)
    path = _file_of(parsed)
    if path is not None:
        _check_file(path)
    reader = None if path is None else _reader(path)
    try:
        engine = create_engine(parsed) if reader is None else create_engine(parsed, creator=reader)
    except ModuleNotFoundError as error:
        raise StoreError(
            f"the store {shown(parsed)} needs the package {error.name}: pip install 'train-pilot[postgresql]'"
        ) from None
    if parsed.get_backend_name() == "sqlite":
        _use_sqlite_safely(engine, writable=reader is None)
    try:
        with translated(engine.url):
            _ensure_schema(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def shown(url: URL) -> str:
    """The store's name for messages: the file, or the URL without its password."""
    path = _file_of(url)
    return url.render_as_string(hide_password=True) if path is None else str(path)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that writes.

    Raises:
        StoreError: It cannot be written.
    """
    with translated(engine.url), engine.execution_options(writes=True).begin() as connection:
        yield connection


def require_writable(engine: Engine) -> None:
    """Refuse a store that can only be read, before any work is done whose result would go there.

    Raises:
        StoreError: It cannot be written.
    """
    with writing(engine) as connection:
        # SQLite lets a transaction begin all the same, and refuses the first statement that could write.
        connection.execute(update(VERSION_TABLE).values(version=SCHEMA_VERSION).where(false()))


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that reads one state of the store, whatever others write meanwhile.

    Raises:
        StoreError: It cannot be read.
    """
    with translated(engine.url), engine.begin() as connection:
        yield connection


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn errors of the database into one line of ours."""
    try:
        yield
    except DBAPIError as error:
        raise _translate(url, error) from None
    except SQLAlchemyError as error:
        raise StoreError(f"the store {shown(url)}: {_one_line(error)}") from None


def _translate(url: URL, error: DBAPIError) -> StoreError:
    message = _one_line(error.orig if error.orig is not None else error)
    lowered = message.lower()
    if url.get_backend_name() == "sqlite" and any(sign in lowered for sign in _CORRUPT_SIGNS):
        return StoreCorruptError(f"the store {shown(url)} is damaged ({message}): move it away or restore a copy")
    if "disk is full" in lowered or "no space left" in lowered:
        return StoreError(f"the store {shown(url)} cannot grow: the disk is full")
    if "is locked" in lowered:
        return StoreError(
            f"the store {shown(url)} is busy: another program has kept it locked for {_BUSY_TIMEOUT_MS / 1000:g} s"
        )
    if "readonly" in lowered or "read-only" in lowered:
        return StoreError(f"the store {shown(url)} is read-only")
    if "unable to open" in lowered:
        return StoreError(f"the store {shown(url)} cannot be opened: the folder is missing or read-only")
    return StoreError(f"the store {shown(url)}: {message}")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        name = parsed.get_backend_name()
    except ArgumentError:
        raise UsageError(
            f"store {url!r}: write a URL such as sqlite:///timings.sqlite or postgresql://host/db"
        ) from None
    if name not in ("sqlite", "postgresql"):
        raise UsageError(f"store {url!r}: {name} is not supported; valid are sqlite and postgresql")
    if parsed.drivername == "postgresql":  # the driver that the extra installs, whatever SQLAlchemy's default is
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def _file_of(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return None
    return Path(url.database.removeprefix("file:"))


def _check_file(path: Path) -> None:
    """Refuse a file that cannot be a whole SQLite database, before anything is done with it."""
    try:
        if not path.exists():
            if "?" not in str(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            return
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {error.strerror}") from None
    if size == 0:  # created, but nothing was written yet
        return
    if len(header) < 100 or not header.startswith(_HEADER):
        raise StoreCorruptError(f"the store {path} is damaged or no store: it is not a SQLite database")
    page_size, change_counter, pages, valid_for = (
        *struct.unpack(">H", header[16:18]),
        *struct.unpack(">I4x", header[24:32]),
        *struct.unpack(">I", header[28:32]),
        *struct.unpack(">I", header[92:96]),
    )
    page_size = 65_536 if page_size == 1 else page_size
    log = path.with_name(f"{path.name}-wal")
    if (
        log.exists() and log.stat().st_size > 0
    ):  # pages that are missing here may be in the log: a full disk leaves that
        return
    if change_counter == valid_for and size < pages * page_size:
        raise StoreCorruptError(
            f"the store {path} is damaged: it was cut to {size} of {pages * page_size} bytes; restore a copy"
        )


def _reader(path: Path) -> Callable[[], sqlite3.Connection] | None:
    """What connects to a file that cannot be written, or None if it can be.

    SQLite writes a log and an index of it next to the file even for reading, so it must be told that it may not.
    """
    if not path.exists() or (_writable(path) and _writable(path.parent)):
        return None
    log = path.with_name(f"{path.name}-wal")
    # Rows that are only in the log are seen through the log; without any the file is all there is.
    mode = "mode=ro" if log.exists() and log.stat().st_size > 0 else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    return lambda: sqlite3.connect(uri, uri=True, check_same_thread=False)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK)


def _use_sqlite_safely(engine: Engine, *, writable: bool) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _: Any) -> None:
        # The driver's own transactions begin too late for a consistent read and for taking turns when writing.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA foreign_keys=ON")
        if writable:
            cursor.execute("PRAGMA journal_mode=WAL")
        # A committed row survives a power cut, not only the end of this process.
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer takes its turn at once: a reader that becomes a writer later would fail instead of waiting.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _ensure_schema(engine: Engine) -> None:
    """Check the schema version, or create the tables in an empty database."""
    with engine.begin() as connection:
        tables = set(inspect(connection).get_table_names())
        if tables:
            _check_version(connection, tables)
            return
    with engine.execution_options(writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATION_LOCK})
        tables = set(inspect(connection).get_table_names())
        if tables:  # another process was faster
            _check_version(connection, tables)
            return
        METADATA.create_all(connection)
        connection.execute(insert(VERSION_TABLE).values(version=SCHEMA_VERSION))


def _check_version(connection: Connection, tables: set[str]) -> None:
    name = shown(connection.engine.url)
    if VERSION_TABLE.name not in tables:
        raise StoreSchemaError(
            f"{name} is a database, but no store of TrainPilot: it has no table {VERSION_TABLE.name}"
        )
    version = connection.execute(select(VERSION_TABLE.c.version)).scalar()
    if version is None:
        raise StoreSchemaError(f"the store {name} does not tell its schema version")
    if version > SCHEMA_VERSION:
        raise StoreSchemaError(
            f"the store {name} has schema {version}, this version of TrainPilot knows up to {SCHEMA_VERSION}: "
            "upgrade TrainPilot"
        )
    if version < SCHEMA_VERSION:
        raise StoreSchemaError(
            f"the store {name} has schema {version}, which never was released; this version needs {SCHEMA_VERSION}"
        )


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
