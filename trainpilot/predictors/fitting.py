"""Fit predictors from the timing dataset, and put them to use if they are not worse than the ones in use."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.errors import ArtifactError, NoDataError, UsageError
from trainpilot.hardware import machine, versions
from trainpilot.predictors.crossfit import HeldOut
from trainpilot.predictors.labels import Labels, clean
from trainpilot.predictors.predictor import Predictor, Provenance, configuration_key
from trainpilot.predictors.registry import activate, load_active, store_version
from trainpilot.predictors.shipped import load_reference
from trainpilot.predictors.targets import STEP_TIME, TARGETS, price_step_s
from trainpilot.settings import load_settings

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike

    from trainpilot.predictors.model import TargetModel
    from trainpilot.predictors.operator_labels import Timings
    from trainpilot.store import TimingStore

_logger = logging.getLogger("trainpilot")

# A challenger may be this much worse in mean absolute log error: less than any label noise that was measured.
_TOLERANCE = 0.005
_UNDER_COVERAGE = 0.10
# Beyond this mean error on unseen workloads a prediction is hardly more than an order of magnitude.
_LARGE_ERROR = 0.5


@dataclass(frozen=True)
class BackendFit:
    """What was fitted for one backend.

    Attributes:
        backend: The backend.
        predictor: The fitted predictor.
        version: Number under which it is stored, or None if it was not put to use.
        promoted: Whether it is in use now.
        decision: Why, in words.
        validation: How the errors were measured: the grouping and the number of groups, or that they could not be.
        metrics: Held-out errors of the step time by kind of fold; empty if it could not be validated.
        warnings: What a reader must know.
    """

    backend: str
    predictor: Predictor
    version: int | None
    promoted: bool
    decision: str
    validation: str
    metrics: dict[str, dict[str, Any]]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        provenance = self.predictor.provenance
        return {
            "backend": self.backend,
            "version": self.version,
            "promoted": self.promoted,
            "decision": self.decision,
            "rows": provenance.rows,
            "workloads": provenance.workloads,
            "models": len(provenance.models),
            "families": list(provenance.families),
            "dropped": dict(provenance.dropped),
            "label_noise": dict(provenance.label_noise),
            "parts": self.predictor.parts_in_use,
            "validation": self.validation,
            "metrics": self.metrics,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class FitReport:
    """What ``fit`` did.

    Attributes:
        fits: One entry for each backend that has enough rows.
        skipped: ``{backend: reason}`` of the others.
    """

    fits: tuple[BackendFit, ...]
    skipped: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"schema": 1, "fits": [item.to_dict() for item in self.fits], "skipped": dict(self.skipped)}


def fit(
    store: TimingStore | str | None = None,
    *,
    backend: str | None = None,
    folder: Path | None = None,
    min_rows: int = 8,
    machine_ids: Collection[str] | None = None,
    include_simulated: bool = False,
    promote: bool = True,
) -> FitReport:
    """Fit a predictor for each backend from the rows of the timing dataset.

    Args:
        store: The dataset, or its SQLAlchemy URL; default: the configured one.
        backend: Only this backend; default: all that have rows.
        folder: Where predictors are stored; default: ``Settings.predictors_dir``.
        min_rows: Least number of usable rows of a backend.
        machine_ids: Rows of these machines; default: of this machine.
        include_simulated: Also fit the rows of simulated backends (each backend has a predictor of its own).
        promote: Put the result to use if it is not worse than the predictor in use or, where there is none, better
            than calibration figures alone.

    Raises:
        NoDataError: No backend has enough usable rows; the text names the command that makes some.
        UsageError: ``min_rows`` is below 1.
        StoreError: The dataset cannot be read.
        ArtifactError: The predictor cannot be stored.
    """
    if min_rows < 1:
        raise UsageError(f"min_rows must be at least 1, got {min_rows}")
    wanted = {machine().machine_id} if machine_ids is None else set(machine_ids)
    frame, timings = _read(store, include_simulated)
    frame = frame[(frame["phase"] == "train_step") & frame["machine_id"].isin(wanted)]
    names = sorted(set(frame["backend"])) if backend is None else [backend]
    fits: list[BackendFit] = []
    skipped: dict[str, str] = {}
    for name in names:
        labels = clean(frame[frame["backend"] == name], timings)
        if labels.rows < min_rows:
            lost = "".join(f", {count} dropped: {reason}" for reason, count in labels.dropped.items())
            skipped[name] = f"{labels.rows} usable rows, {min_rows} are needed{lost}"
            continue
        fits.append(_fit_backend(name, labels, folder, promote))
    if not fits:
        told = "; ".join(f"backend {name}: {reason}" for name, reason in skipped.items()) or "no row of this machine"
        raise NoDataError(f"nothing to fit: {told}: run `trainpilot benchmark --quick`")
    return FitReport(tuple(fits), skipped)


def _read(store: TimingStore | str | None, include_simulated: bool) -> tuple[pd.DataFrame, Timings]:
    from trainpilot.store import open_store

    if store is not None and not isinstance(store, str):
        return _frame(store, include_simulated), store.operators_by_row()
    with open_store(store) as opened:
        return _frame(opened, include_simulated), opened.operators_by_row()


def _frame(store: TimingStore, include_simulated: bool) -> pd.DataFrame:
    import pandas as pd

    frame = store.frame(status="ok", simulated=False)
    if not include_simulated:
        return frame
    simulated = store.frame(status="ok", simulated=True)
    return pd.concat([part for part in (frame, simulated) if len(part)] or [frame], ignore_index=True)


def fit_predictor(
    backend: str,
    labels: Labels,
    *,
    level: float = 0.9,
    n_jobs: int | None = None,
    reference: Predictor | None = None,
    created_at: float | None = None,
) -> Predictor:
    """Fit all targets that have labels.

    Args:
        backend: The backend of the rows.
        labels: What ``clean`` gave.
        level: Nominal coverage of the intervals.
        n_jobs: Folds that are fitted at a time, and threads of the boosted part; default: the usable cores.
        reference: A predictor of other machines. Its step-time model, adapted to the rows, is taken where it has the
            smaller error on rows that were held out: with few rows it has.
        created_at: Seconds since the epoch; default: now.
    """
    # Only now: a dataset that cannot be read is told without loading xgboost, which takes seconds.
    from trainpilot.predictors.model import TargetModel
    from trainpilot.predictors.splits import Splits

    models: dict[str, TargetModel] = {}
    shared: dict[bytes, Splits] = {}
    for target in TARGETS:
        values = labels.values[target.name]
        known = ~np.isnan(values)
        if known.any():
            splits = shared.setdefault(known.tobytes(), Splits.of(labels.table.take(known), labels.figures))
            models[target.name] = TargetModel(target, level, n_jobs).fit(
                splits.table, values[known], labels.figures, splits, labels.operators
            )
    adapted_from = ""
    if reference is not None:
        adapted = _adapted_if_better(reference, models[STEP_TIME.name], labels, level)
        if adapted is not None:
            models[STEP_TIME.name], adapted_from = adapted, reference.provenance.data_hash
    table = labels.table
    provenance = Provenance(
        created_at=time.time() if created_at is None else created_at,
        data_hash=labels.data_hash,
        rows=labels.rows,
        workloads=len(set(table.workload_hash)),
        models=tuple(sorted(set(table.model_hash))),
        families=tuple(sorted(set(table.family))),
        dropped=labels.dropped,
        label_noise=labels.noise,
        versions=versions(),
        held_out=_held_out_predictions(models[STEP_TIME.name], labels),
        adapted_from=adapted_from,
        controls=labels.controls,
    )
    return Predictor(backend, models, provenance)


def fit_reference(
    frame: pd.DataFrame, backend: str, *, level: float = 0.9, timings: Timings | None = None
) -> Predictor:
    """Fit a predictor from a dataset alone: the same rows, libraries and processor give the same bits.

    Args:
        frame: Rows of the timing dataset, of any machines.
        backend: The backend.
        level: Nominal coverage of the intervals.
        timings: Operator timings by id of the row.

    Raises:
        NoDataError: The dataset has no usable row of the backend.
    """
    rows = frame[(frame["backend"] == backend) & (frame["phase"] == "train_step") & (frame["status"] == "ok")]
    labels = clean(rows, timings)
    if not labels.rows:
        raise NoDataError(f"the dataset has no usable row of backend {backend}")
    # The time is that of the data.
    return fit_predictor(backend, labels, level=level, created_at=float(rows["created_at"].max()))


def _adapted_if_better(reference: Predictor, own: TargetModel, labels: Labels, level: float) -> TargetModel | None:
    """The reference's model adapted to the rows, if it does better on the same held-out rows."""
    from trainpilot.predictors.transfer import adapt

    machines = {context.machine_id for context in labels.table.context}
    settings = {tuple(context)[1:] for context in reference.contexts}
    if len(machines) != 1:
        return None
    if not all(tuple(context)[1:] in settings for context in labels.table.context):
        return None
    adapted = adapt(reference, labels, level=level)
    theirs, ours = _judged(adapted.held_out_), _judged(own.held_out_)
    if theirs is None or not len(theirs):
        return None
    if ours is None or not len(ours):
        return adapted
    return adapted if _held_out_error(adapted, theirs) < _held_out_error(own, ours) else None


def _held_out_error(model: TargetModel, held: HeldOut) -> float:
    return float(np.abs(held.errors(model.shrinkage_)).mean())


def _fit_backend(name: str, labels: Labels, folder: Path | None, promote: bool) -> BackendFit:
    warnings: list[str] = []
    try:
        reference = load_reference(name)
    except ArtifactError as error:
        reference = None
        warnings.append(f"the reference predictor could not be read and is left out: {error}")
    challenger = fit_predictor(name, labels, level=load_settings().level, reference=reference)
    try:
        champion = load_active(name, folder)
    except ArtifactError as error:
        champion = None
        warnings.append(f"the predictor in use could not be read and is left out: {error}")
    own = _own_warnings(challenger, labels)
    warnings.extend(own)
    challenger = dataclasses.replace(
        challenger, provenance=dataclasses.replace(challenger.provenance, warnings=tuple(own))
    )
    better, decision = _compare(champion, challenger, labels)
    promoted = better and promote
    version = None
    if promoted:
        version = store_version(challenger, folder)
        activate(name, version, folder)
    for warning in warnings:
        _logger.warning("%s: %s", name, warning)
    return BackendFit(
        backend=name,
        predictor=challenger,
        version=version,
        promoted=promoted,
        decision=decision if promote else f"{decision}; not put to use, as asked",
        validation=_validation(challenger),
        metrics=challenger.step.metrics_,
        warnings=tuple(warnings),
    )


def _own_warnings(predictor: Predictor, labels: Labels) -> list[str]:
    """What a reader of the predictor's predictions must know."""
    warnings: list[str] = []
    if labels.contended:
        warnings.append(
            f"{labels.contended} of {labels.rows} rows were measured while something else used the machine, "
            "because hardly any others are there: measure again when it is idle"
        )
    metrics = predictor.step.metrics_
    judged = metrics.get("family") or metrics.get("model") or {}
    error = judged.get("mape")
    if error is not None and error > _LARGE_ERROR:
        warnings.append(f"its mean error on unseen workloads is {error:.0%}: measure more rows on an idle machine")
    coverage, level = judged.get("coverage"), predictor.step.level
    if coverage is not None and coverage < level - _UNDER_COVERAGE:
        warnings.append(f"intervals cover {coverage:.0%} of unseen workloads instead of {level:.0%}")
    return warnings


def _validation(predictor: Predictor) -> str:
    metrics = predictor.step.metrics_
    if predictor.provenance.adapted_from:
        groups = metrics.get("family") or metrics.get("model") or {}
        return (
            f"each of {groups.get('groups', 0)} groups by the reference predictor and the rows of the others; the "
            "reference has seen other models of the same families"
        )
    if "family" in metrics:
        return f"leave one family out, {metrics['family']['groups']} families"
    if "model" in metrics:
        return f"grouped by model, {len(predictor.provenance.models)} models of one family"
    return "cannot be validated: all rows are of one model"


def _held_out_predictions(model: TargetModel, labels: Labels) -> dict[str, float]:
    """Held-out predictions by configuration, as logarithms of seconds."""
    held = _judged(model.held_out_)
    if held is None:
        return {}
    errors = held.errors(model.shrinkage_)
    logs = np.log(labels.values[STEP_TIME.name])
    return {
        configuration_key(labels.table, int(row)): float(logs[row] - error)
        for row, error in zip(held.row, errors, strict=True)
    }


def _judged(held: HeldOut | None) -> HeldOut | None:
    """Unseen families, or unseen models where there is one family only."""
    if held is None:
        return None
    return held.of_kind("family" if (held.kind == "family").any() else "model")


def _compare(champion: Predictor | None, challenger: Predictor, labels: Labels) -> tuple[bool, str]:
    """Whether the challenger replaces the champion, and why.

    Both are compared on the same configurations, each by a prediction made without the configuration's group: the
    one that was held out at its own fit or, for what the champion never saw, its prediction of today.
    """
    if champion is None:
        return _compare_with_calibration(challenger, labels)
    theirs, ours, truth = [], [], []
    table, times = labels.table, labels.values[STEP_TIME.name]
    for row in range(len(table)):
        key = configuration_key(table, row)
        mine = challenger.provenance.held_out.get(key)
        old = champion.provenance.held_out.get(key)
        if old is None and table.model_hash[row] not in champion.provenance.models:
            old = _log_prediction(champion, labels, row)
        if mine is not None and old is not None:
            ours.append(mine)
            theirs.append(old)
            truth.append(float(np.log(times[row])))
    if not truth:
        if challenger.step.held_out_ is None:
            return False, "not put to use: it cannot be validated, and there is a predictor in use"
        return True, "put to use: the predictor in use knows none of the measured settings"
    new, before = _mean_error(truth, ours), _mean_error(truth, theirs)
    told = f"{np.expm1(new):.1%} error against {np.expm1(before):.1%} on {len(truth)} held-out configurations"
    if new <= before + _TOLERANCE:
        return True, f"put to use: {told}"
    return False, f"not put to use: {told}"


def _compare_with_calibration(challenger: Predictor, labels: Labels) -> tuple[bool, str]:
    """Whether the first predictor is better than what would answer without it: calibration figures alone."""
    table, truth = labels.table, np.log(labels.values[STEP_TIME.name])
    priced = np.log(price_step_s(table, labels.figures).sum(axis=1))
    held_out = challenger.provenance.held_out
    rows = [
        row
        for row in range(len(table))
        if table.context[row] in labels.figures and configuration_key(table, row) in held_out
    ]
    if not rows:
        return True, "put to use: there was no predictor before"
    ours = [held_out[configuration_key(table, row)] for row in rows]
    new, before = _mean_error(truth[rows], ours), _mean_error(truth[rows], priced[rows])
    told = (
        f"{np.expm1(new):.1%} error against {np.expm1(before):.1%} of calibration figures alone "
        f"on {len(rows)} held-out configurations"
    )
    if new < before:
        return True, f"put to use: there was no predictor before; {told}"
    return False, f"not put to use: {told}"


def _mean_error(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Mean absolute difference of logarithms."""
    return float(np.abs(np.asarray(truth) - np.asarray(predicted)).mean())


def _log_prediction(predictor: Predictor, labels: Labels, row: int) -> float | None:
    """Logarithm of the predicted step time, or None where the predictor knows too little."""
    try:
        return float(np.log(predictor.forecast(labels.table.take(np.array([row])))[0].value))
    except NoDataError:
        return None
