"""Rows that the store could not take, kept in files of their own until ``trainpilot data import`` takes them back."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainpilot.benchmarking import Measurement, OperatorTiming
from trainpilot.errors import DataError, StoreError
from trainpilot.files import write_atomically
from trainpilot.settings import load_settings
from trainpilot.store.store import TimingStore


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
