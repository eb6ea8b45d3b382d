"""Rows that the store could not take, kept in files of their own until ``trainpilot data import`` takes them back."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from trainpilot.benchmarking import Measurement, OperatorTiming
from trainpilot.errors import DataError, StoreError
from trainpilot.files import write_atomically
from trainpilot.settings import load_settings
from trainpilot.store.store import TimingStore, open_store


@dataclasses.dataclass(frozen=True)
class Kept:
    """Where a row is.

    Attributes:
        new: Whether the store took it; False if it has the row already, or could not take it.
        path: The file that holds the row instead, or None.
        problem: Why the store could not take it, or None.
    """

    new: bool
    path: Path | None = None
    problem: StoreError | None = None

    @property
    def note(self) -> str:
        """What a person must know, in words; empty if the row is in the store."""
        if self.problem is None:
            return ""
        return f"{self.problem}; the row is kept in {self.path}: `trainpilot data import {self.path}` takes it back"


def keep_row(
    measurement: Measurement, operators: Sequence[OperatorTiming] = (), store: TimingStore | None = None
) -> Kept:
    """Put a row into the store or, where the store cannot take it, into a file of its own.

    Args:
        measurement: The row.
        operators: Its operator timings.
        store: The store; default: that of the settings, opened for this row.

    Raises:
        MeasurementError: A number of the row is not finite.
        StoreError: The row could be kept nowhere; the text says why, and holds the row itself.
    """
    try:
        with ExitStack() as stack:
            target = store or stack.enter_context(open_store())
            return Kept(target.append(measurement, operators))
    except (StoreError, OSError) as error:
        problem = error if isinstance(error, StoreError) else StoreError(str(error))
    try:
        return Kept(False, spill(measurement, operators), problem)
    except StoreError as failure:
        raise type(problem)(f"{problem}; {failure}") from None


def spill(measurement: Measurement, operators: Sequence[OperatorTiming] = ()) -> Path:
    """Keep a row in a file: in the data folder or, where that cannot be written, in the temporary one.

    Raises:
        StoreError: Neither can be written; the text holds the row itself.
    """
    content = {
        "measurement": dataclasses.asdict(measurement),
        "operators": [dataclasses.asdict(timing) for timing in operators],
    }
    text = json.dumps(content, allow_nan=False)
    refused: list[str] = []
    for folder in (load_settings().data_dir / "spill", Path(tempfile.gettempdir())):
        path = folder / f"trainpilot-row-{measurement.row_id}.json"
        try:
            write_atomically(path, text.encode())
        except OSError as error:
            refused.append(f"{folder}: {error.strerror or error}")
        else:
            return path
    raise StoreError(f"the row could not be kept in a file either ({'; '.join(refused)}); here it is: {text}")


def import_spilled(path: Path, store: TimingStore) -> bool:
    """Take back a row that ``spill`` kept; False if the store has it already.

    Raises:
        DataError: The file holds no such row.
        StoreError: The store cannot be written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        measurement = Measurement(**content["measurement"])
        operators = [OperatorTiming(**timing) for timing in content["operators"]]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} holds no row of the timing dataset: {error}") from None
    return store.append(measurement, operators)
