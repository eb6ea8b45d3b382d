"""How long fitting takes on 10,000 rows.

Run ``python benchmarks/fit_speed.py``; prints one JSON document, with the limit that the time is held to. The rows are
those of the reference dataset and copies of them: a copy does everything two, three, ... times, as a deeper model
would, takes so many times as long with some noise, and is another model of the same family. What is timed is the work
of ``trainpilot fit`` from rows in memory to a predictor: cleaning, every target, all held-out folds, intervals.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from trainpilot.hardware import usable_cores
from trainpilot.predictors.fitting import fit_predictor
from trainpilot.predictors.labels import clean
from trainpilot.predictors.operator_labels import Timings
from trainpilot.store import dataset_frame, dataset_operators

MOST_FIT_S = 30.0
BACKEND = "cpu"
_TIMES = ("step_time_s", "setup_time_s", "first_step_s")
_COUNTS = ("calls", "flops", "bytes_read", "bytes_written")


def copied(frame: pd.DataFrame, times: int) -> pd.DataFrame:
    """The same rows of models that do everything so many times."""
    rng = np.random.default_rng(times)
    copy = frame.copy()
    for name in ("row_id", "config_key", "workload_hash", "model_hash"):
        copy[name] = copy[name].astype(str) + f"-{times}"
    copy["op_groups"] = [
        [{**group, **{name: times * group[name] for name in _COUNTS}} for group in groups]
        for groups in frame["op_groups"]
    ]
    for name in _TIMES:
        copy[name] = frame[name].astype(float) * times * np.exp(rng.normal(0.0, 0.03, len(frame)))
    return copy


def copied_timings(timings: Timings, times: int) -> Timings:
    """Operator timings of the copies: of each operator so many calls more."""
    return {
        f"{row_id}-{times}": [
            dataclasses.replace(timing, calls=times * timing.calls, time_s=times * timing.time_s) for timing in own
        ]
        for row_id, own in timings.items()
    }


def rows_of(dataset: Path, count: int) -> tuple[pd.DataFrame, Timings]:
    """So many rows made of those of a dataset, and the timings of operators inside them."""
    timings = dataset_operators(dataset)
    frame = dataset_frame(dataset)
    frame = frame[(frame["backend"] == BACKEND) & (frame["phase"] == "train_step") & (frame["status"] == "ok")]
    copies = -(-count // len(frame))
    parts = [frame, *(copied(frame, times) for times in range(2, copies + 1))]
    every = dict(timings)
    for times in range(2, copies + 1):
        every |= copied_timings(timings, times)
    return pd.concat(parts, ignore_index=True)[:count], every


def main() -> int:
    """Measure, print, and exit with 1 if the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=Path(__file__).parents[1] / "datasets" / "reference")
    parser.add_argument("--rows", type=int, default=10_000)
    arguments = parser.parse_args()
    import trainpilot.predictors.model  # noqa: F401 (loading xgboost and scikit-learn is not part of the fit)

    frame, timings = rows_of(arguments.dataset, arguments.rows)
    worked, start = time.process_time(), time.perf_counter()
    labels = clean(frame, timings)
    cleaned = time.perf_counter()
    predictor = fit_predictor(BACKEND, labels)
    fitted = time.perf_counter()
    total = fitted - start
    metrics: dict[str, Any] = {kind: found["mape"] for kind, found in predictor.step.metrics_.items()}
    print(
        json.dumps(
            {
                "figures": {"fit_s": {"value": total, "limit": MOST_FIT_S, "ok": total <= MOST_FIT_S}},
                "rows": len(frame),
                "configurations": len(labels.table),
                "operator_labels": 0 if labels.operators is None else len(labels.operators),
                "clean_s": cleaned - start,
                "fit_s": fitted - cleaned,
                "processor_s": time.process_time() - worked,
                "targets": list(predictor.targets),
                "held_out_error": metrics,
                "cores": usable_cores(),
                "load_average_1min": os.getloadavg()[0],
            },
            indent=2,
        )
    )
    return 0 if total <= MOST_FIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
