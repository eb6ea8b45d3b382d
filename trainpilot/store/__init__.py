"""The labelled timing dataset: schema, database, import and export, and collecting sweeps into it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainpilot.store.collect import benchmark
    from trainpilot.store.exchange import (
        VerifyReport,
        dataset_frame,
        dataset_operators,
        dataset_rows,
        export_parquet,
        import_parquet,
        merge,
        verify,
    )
    from trainpilot.store.noise import LEARNED, NoiseEntry, NoiseReport, noise_report
    from trainpilot.store.spilled import Kept, import_spilled, keep_row, spill
    from trainpilot.store.store import SweepEntry, TimingStore, list_sweeps, open_store

# Resolved when first used: the database library takes a fifth of a second to load.
_HOMES = {
    "Kept": "spilled",
    "LEARNED": "noise",
    "NoiseEntry": "noise",
    "NoiseReport": "noise",
    "SweepEntry": "store",
    "TimingStore": "store",
    "VerifyReport": "exchange",
    "benchmark": "collect",
    "dataset_frame": "exchange",
    "dataset_operators": "exchange",
    "dataset_rows": "exchange",
    "export_parquet": "exchange",
    "import_parquet": "exchange",
    "import_spilled": "spilled",
    "keep_row": "spilled",
    "list_sweeps": "store",
    "merge": "exchange",
    "noise_report": "noise",
    "open_store": "store",
    "spill": "spilled",
    "verify": "exchange",
}

__all__ = [
    "LEARNED",
    "Kept",
    "NoiseEntry",
    "NoiseReport",
    "SweepEntry",
    "TimingStore",
    "VerifyReport",
    "benchmark",
    "dataset_frame",
    "dataset_operators",
    "dataset_rows",
    "export_parquet",
    "import_parquet",
    "import_spilled",
    "keep_row",
    "list_sweeps",
    "merge",
    "noise_report",
    "open_store",
    "spill",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trainpilot.store' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trainpilot.store.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
