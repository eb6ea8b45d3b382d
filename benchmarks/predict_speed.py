"""How long a prediction takes, against a bare call of XGBoost with the booster of the same predictor.

Run ``python benchmarks/predict_speed.py``; prints one JSON document. Each figure comes with the limit it is held to:
a ratio of medians, the two sides measured in turns in one run, both on one thread.

- ``one_step``: the reference predictor (all parts: additive, boosted, range, interval) asked about one traced step.
- ``one_workload``: ``trainpilot.predict`` asked again about a workload: profile from the cache, settings and files
  looked at as always, every target, the whole plan.
- ``batch``: the reference predictor asked about many different steps at once.

A bare call is what XGBoost's own documentation shows, ``booster.predict(DMatrix(row))``, with the features at hand.
``inplace_predict``, which skips the matrix, is reported beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before anything starts threads

import numpy as np
import xgboost

import trainpilot as tp
from trainpilot.predictors.labels import clean
from trainpilot.predictors.predictor import Predictor
from trainpilot.predictors.shipped import load_reference
from trainpilot.predictors.table import WorkTable, table_of_profile
from trainpilot.store import dataset_frame

MOST_TIMES_XGBOOST = 1.5
BACKEND = "cpu"


def in_turns(functions: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Median wall time of each function in s, called in turns, so that a busy moment meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def features_of(predictor: Predictor, table: WorkTable) -> np.ndarray[Any, Any]:
    """The features that the booster sees, shape (n, features)."""
    from trainpilot.predictors.features import scale_free
    from trainpilot.predictors.targets import price_step_s

    step = predictor.step
    return scale_free(table, price_step_s(table, step.figures_), step.domain_.categories).astype(np.float32)


def bare_calls(booster: xgboost.Booster, features: np.ndarray[Any, Any]) -> dict[str, Callable[[], object]]:
    """XGBoost alone on the features, in both ways."""
    booster = booster.copy()
    booster.set_param({"nthread": 1})
    names = booster.feature_names
    return {
        "xgboost_dmatrix": lambda: booster.predict(xgboost.DMatrix(features, feature_names=names, nthread=1)),
        "xgboost_inplace": lambda: booster.inplace_predict(features, validate_features=False),
    }


def many_steps(dataset: Path, count: int) -> WorkTable:
    """Different steps like those of a dataset: every amount of each is changed by some percent."""
    frame = dataset_frame(dataset)
    table = clean(frame[(frame["backend"] == BACKEND) & (frame["status"] == "ok")]).table
    rng = np.random.default_rng(0)
    table = table.take(rng.integers(0, len(table), count))
    return dataclasses.replace(table, work=table.work * np.exp(rng.normal(0.0, 0.05, table.work.shape)))


def main() -> int:
    """Measure, print, and exit with 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, default=Path(__file__).parents[1] / "datasets" / "reference")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINPILOT_DATA_DIR"] = folder  # nothing fitted here: the reference predictor answers
        predictor = load_reference(BACKEND)
        if predictor is None or predictor.step.boosted_ is None:
            raise SystemExit("the reference predictor is missing or has no boosted part")
        booster = predictor.step.boosted_.booster_
        workload = tp.Workload("resnet", batch_size=16)
        prediction = tp.predict(workload, BACKEND)
        context = next(c for c in predictor.contexts if (c.threads, c.dtype) == (1, "float32"))
        table = table_of_profile(tp.profile(workload), context)
        one = in_turns(
            {
                **bare_calls(booster, features_of(predictor, table)),
                "one_step": lambda: predictor.forecast(table)[0],
                "one_workload": lambda: tp.predict(workload, BACKEND),
            },
            arguments.repetitions,
        )
    steps = many_steps(arguments.dataset, arguments.rows)
    features = features_of(predictor, steps)
    batch = in_turns(
        # A table that was not asked about before each time: it remembers its sums.
        {**bare_calls(booster, features), "batch": lambda: predictor.forecast(dataclasses.replace(steps))},
        7,
    )
    figures = {
        "one_step": one["one_step"] / one["xgboost_dmatrix"],
        "one_workload": one["one_workload"] / one["xgboost_dmatrix"],
        "batch": batch["batch"] / batch["xgboost_dmatrix"],
    }
    print(
        json.dumps(
            {
                "figures": {
                    name: {"value": value, "limit": MOST_TIMES_XGBOOST, "ok": value <= MOST_TIMES_XGBOOST}
                    for name, value in figures.items()
                },
                "times_inplace_predict": {
                    name: times[name] / times["xgboost_inplace"]
                    for times, names in ((one, ("one_step", "one_workload")), (batch, ("batch",)))
                    for name in names
                },
                "one_s": one,
                "batch_s": {"rows": arguments.rows, **batch},
                "source": prediction.source,
                "trees": booster.num_boosted_rounds(),
                "xgboost": xgboost.__version__,
            },
            indent=2,
        )
    )
    return 0 if all(value <= MOST_TIMES_XGBOOST for value in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
