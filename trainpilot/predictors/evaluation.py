"""The evaluation protocol: every split, every baseline, in one run on one dataset."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from trainpilot.errors import NoDataError, UsageError
from trainpilot.predictors.baselines import METHODS
from trainpilot.predictors.crossfit import errors_of
from trainpilot.predictors.folds import Fold, family_folds, family_groups, model_folds, size_folds
from trainpilot.predictors.labels import Labels, clean
from trainpilot.predictors.model import TargetModel
from trainpilot.predictors.regret import settings_regret
from trainpilot.predictors.splits import Splits
from trainpilot.predictors.targets import STEP_TIME, price_step_s

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from trainpilot.predictors.operator_labels import Timings
    from trainpilot.predictors.table import WorkTable

OURS = "trainpilot"
_CURVE_SIZES = (12, 25, 50, 100, 200, 400, 800)
SPLITS = ("random_by_model", "leave_one_family_out", "largest_fifth", "leave_one_machine_out")


def evaluate(
    frame: pd.DataFrame,
    *,
    backend: str = "cpu",
    level: float = 0.9,
    splits: Collection[str] = SPLITS,
    methods: Collection[str] = (*METHODS, OURS),
    n_jobs: int | None = None,
    timings: Timings | None = None,
) -> dict[str, Any]:
    """Measure the error of the predictor and of what a user could use instead, on unseen models.

    No model is on both sides of any split, and every choice of our predictor (shrinkage, intervals) is made inside
    the training part.

    Args:
        frame: Rows of the timing dataset; columns as the fields of ``Measurement``.
        backend: The backend.
        level: Nominal coverage of the intervals.
        splits: Names of ``SPLITS``.
        methods: Names of the baselines, and ``trainpilot``.
        n_jobs: Threads of the boosted part; default: the usable cores.
        timings: Operator timings by id of the row.

    Returns:
        JSON types: ``schema``, ``backend``, ``rows``, ``configurations``, ``dropped``, ``label_noise``, ``level`` and
        ``splits``: by split ``groups`` and ``methods``, or ``skipped`` with the reason; by method ``n``, ``mape``,
        ``median_ape``, ``p90_ape`` (fractions), ``coverage`` and ``median_relative_width`` of the intervals (None for
        methods that give none), and ``by_family``: the mean error of each. ``settings_regret``: see there; once for
        float32 alone and once for all compute types, None where too few steps were measured at several settings.
        ``learning_curve``: error on unseen models after some ``configurations``, which took so many ``minutes``
        (None where the rows do not tell).

    Raises:
        UsageError: A split or method has no such name.
        NoDataError: No usable row of the backend.
    """
    for kind, given, valid in (("split", splits, SPLITS), ("method", methods, (*METHODS, OURS))):
        unknown = [name for name in given if name not in valid]
        if unknown:
            raise UsageError(f"unknown {kind} {unknown[0]!r}: valid: {', '.join(valid)}")
    used = (frame["backend"] == backend) & (frame["phase"] == "train_step") & (frame["status"] == "ok")
    labels = clean(frame[used], timings)
    if not labels.rows:
        raise NoDataError(f"the dataset has no usable row of backend {backend}")
    result: dict[str, Any] = {
        "schema": 1,
        "backend": backend,
        "rows": labels.rows,
        "configurations": len(labels.table),
        "dropped": labels.dropped,
        "label_noise": labels.noise,
        "level": level,
        "splits": {},
    }
    predicted: dict[str, NDArray[np.float64]] = {}
    for split in splits:
        folds = _folds(split, labels)
        if not folds:
            result["splits"][split] = {"skipped": _WHY_SKIPPED[split]}
            continue
        # Matrices of a few thousand rows: threads that wait for each other, beside anything else, cost a hundred times
        # what they save.
        with threadpool_limits(1, user_api="blas"):
            found = {name: _evaluate_method(name, labels, folds, level, n_jobs) for name in methods}
        result["splits"][split] = {
            "groups": len(folds),
            "methods": {name: metrics for name, (metrics, _) in found.items()},
        }
        if OURS in found:
            predicted[split] = found[OURS][1]
    if OURS in methods:
        held_out = predicted.get("leave_one_family_out")
        result["settings_regret"] = {
            "float32": None if held_out is None else settings_regret(labels, held_out, dtypes=("float32",)),
            "all_dtypes": None if held_out is None else settings_regret(labels, held_out),
        }
        result["learning_curve"] = _learning_curve(frame, labels, level, n_jobs)
    return result


def _learning_curve(frame: pd.DataFrame, labels: Labels, level: float, n_jobs: int | None) -> list[dict[str, Any]]:
    """Error on a fifth of the models against the time that profiling the training rows took."""
    folds = model_folds(labels.table)
    if not folds:
        return []
    fold, times = folds[0], labels.values[STEP_TIME.name]
    # In an order that is as good as random and the same on every run.
    order = sorted(fold.train, key=lambda row: (str(labels.table.workload_hash[row]), row))
    sizes = [size for size in _CURVE_SIZES if size < len(order)]
    each_s = _seconds_a_configuration(frame)
    points = []
    for size in [*sizes, len(order)]:
        train = np.array(order[:size])
        model = _fitted(labels, train, level, n_jobs)
        errors = np.log(times[fold.held] / model.predict(labels.table.take(fold.held)))
        minutes = None if each_s is None else size * each_s / 60
        points.append({"configurations": size, "minutes": minutes, **errors_of(errors)})
    return points


def _fitted(labels: Labels, train: NDArray[np.intp], level: float, n_jobs: int | None) -> TargetModel:
    """Our predictor of the step time, fitted on some of the steps."""
    table = labels.table.take(train)
    # Of this machine alone, too: another one may have timed the operators of the same workloads.
    operators = labels.operators and labels.operators.of(set(table.workload_hash), set(table.context))
    times = labels.values[STEP_TIME.name][train]
    splits = Splits.of(table, labels.figures, coarse=True)
    return TargetModel(STEP_TIME, level, n_jobs).fit(table, times, labels.figures, splits, operators)


def _seconds_a_configuration(frame: pd.DataFrame) -> float | None:
    """Median time from one row of a sweep to the next, times the rounds of a configuration; None if unknown."""
    rows = frame.sort_values("created_at")
    gaps = np.diff(rows["created_at"].to_numpy(dtype=float))
    same_sweep = (rows["sweep_id"].to_numpy()[1:] == rows["sweep_id"].to_numpy()[:-1]) if len(rows) > 1 else []
    gaps = gaps[np.asarray(same_sweep, dtype=bool)]
    rounds = len(rows) / max(1, rows["config_key"].nunique())
    middle = float(np.median(gaps)) if len(gaps) else 0.0
    return middle * rounds if middle > 0 else None


_WHY_SKIPPED = {
    "random_by_model": "cannot be validated: fewer than two models",
    "leave_one_family_out": "cannot be validated: fewer than two families",
    "largest_fifth": "cannot be validated: fewer than ten models",
    "leave_one_machine_out": "cannot be validated: fewer than two machines",
}


def _folds(split: str, labels: Labels) -> list[Fold]:
    table = labels.table
    if split == "random_by_model":
        return model_folds(table)
    if split == "leave_one_family_out":
        return family_folds(table)
    if split == "largest_fifth":
        return size_folds(table, price_step_s(table, labels.figures).sum(axis=1))
    return machine_folds(table)


def machine_folds(table: WorkTable) -> list[Fold]:
    """Leave one machine out. The same models were measured on both sides: it is the machine that is new."""
    machines = np.array([context.machine_id for context in table.context], dtype=object)
    names = sorted(set(machines))
    if len(names) < 2:
        return []
    return [Fold("machine", name, np.flatnonzero(machines == name), np.flatnonzero(machines != name)) for name in names]


def _evaluate_method(
    name: str, labels: Labels, folds: list[Fold], level: float, n_jobs: int | None
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """Errors of one method on one split, and its predictions, NaN where a step was never held out."""
    table, times = labels.table, labels.values[STEP_TIME.name]
    predicted = np.full(len(table), np.nan)
    errors: list[NDArray[np.float64]] = []
    families: list[NDArray[np.object_]] = []
    hits: list[bool] = []
    widths: list[float] = []
    for fold in folds:
        train, held = table.take(fold.train), table.take(fold.held)
        truth = times[fold.held]
        if name == OURS:
            model = _fitted(labels, fold.train, level, n_jobs)
            forecasts = model.forecast(held)
            values = np.array([forecast.value for forecast in forecasts])
            for forecast, measured in zip(forecasts, truth, strict=True):
                if forecast.low is not None and forecast.high is not None:
                    hits.append(forecast.low <= measured <= forecast.high)
                    widths.append((forecast.high - forecast.low) / forecast.value)
        else:
            values = METHODS[name](train, times[fold.train], held, labels.figures)
        predicted[fold.held] = values
        errors.append(np.log(truth / values))
        families.append(family_groups(held))
    all_errors, all_families = np.concatenate(errors), np.concatenate(families)
    metrics = {
        **errors_of(all_errors),
        "coverage": float(np.mean(hits)) if hits else None,
        "median_relative_width": float(np.median(widths)) if widths else None,
        "by_family": {
            str(family): errors_of(all_errors[all_families == family])["mape"] for family in sorted(set(all_families))
        },
    }
    return metrics, predicted
