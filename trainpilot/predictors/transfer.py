"""Taking a predictor to another machine: by calibration figures alone, or by these and a few rows measured there."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.predictors.crossfit import HeldOut
from trainpilot.predictors.folds import family_folds, model_folds
from trainpilot.predictors.intervals import Intervals
from trainpilot.predictors.model import TargetModel
from trainpilot.predictors.targets import STEP_TIME, price_step_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainpilot.predictors.domain import Domain
    from trainpilot.predictors.folds import Fold
    from trainpilot.predictors.labels import Labels
    from trainpilot.predictors.predictor import Predictor
    from trainpilot.predictors.table import Context, WorkTable

# How far the prices of another machine lie from what its calibration figures say, level and each part, in log units:
# the spread of one machine's corrections between its numbers of threads, which are as different as machines get here.
MACHINE_SPREAD = 0.3
_MACHINE = 0  # position of the machine in a context


def moved(predictor: Predictor, context: Context, figures: Mapping[str, float]) -> Predictor:
    """The predictor on a machine of which only calibration figures are known.

    What was learned of amounts and settings holds on; rates are those of the new machine's figures. How wrong that is
    cannot be told before rows of the machine exist, so there are no intervals.

    Args:
        predictor: A predictor of other machines.
        context: Where and how the step would run.
        figures: Calibration figures there.
    """
    targets = {}
    for name, model in predictor.targets.items():
        domain = dataclasses.replace(model.domain_, contexts=(context,))
        targets[name] = _copy(model, domain, {context: figures})
        targets[name].intervals_ = Intervals(model.level, None, None, 0, 0)
    return dataclasses.replace(predictor, targets=targets)


def adapt(reference: Predictor, labels: Labels, *, level: float = 0.9) -> TargetModel:
    """The step-time model of a reference predictor, corrected by rows of one other machine.

    One more correction per part, that of the machine, is learned with a prior around 0; everything else stays as the
    reference has it. Intervals come from the rows themselves, each predicted without the families (or models) of its
    own fold.

    Args:
        reference: A predictor of other machines.
        labels: Cleaned rows of one machine.
        level: Nominal coverage of the intervals.
    """
    step, table, times = reference.step, labels.table, labels.values[STEP_TIME.name]
    machine_id = table.context[0].machine_id
    settings = {tuple(context)[1:] for context in step.domain_.contexts}
    known = tuple(sorted(context for context in set(table.context) if tuple(context)[1:] in settings))
    domain = dataclasses.replace(step.domain_, contexts=known)
    model = _adapted(step, domain, machine_id, table, times, labels)
    folds = family_folds(table) or model_folds(table)
    parts = [_held_out(step, domain, machine_id, fold, table, times, labels) for fold in folds if len(fold.train)]
    model.level = level
    model.held_out_ = HeldOut.join(parts) if parts else None
    model.calibrate()
    return model


def _adapted(
    step: TargetModel, domain: Domain, machine_id: str, table: WorkTable, times: NDArray[np.float64], labels: Labels
) -> TargetModel:
    model = _copy(step, domain, labels.figures)
    parts = model.parts(table)
    # The boosted correction applies on top of the machine's, so its share of the labels is taken out first.
    plain = model.predict(table) / step.additive_.predict(parts, table.context)
    model.additive_ = step.additive_.adapted(
        (_MACHINE, machine_id), parts, times / plain, list(table.context), MACHINE_SPREAD
    )
    return model


def _held_out(
    step: TargetModel,
    domain: Domain,
    machine_id: str,
    fold: Fold,
    table: WorkTable,
    times: NDArray[np.float64],
    labels: Labels,
) -> HeldOut:
    model = _adapted(step, domain, machine_id, table.take(fold.train), times[fold.train], labels)
    held = table.take(fold.held)
    position = domain.locate(held, price_step_s(held, labels.figures))
    base = model.additive_.predict(model.parts(held), held.context)
    factor = step.shrinkage_.factor(position.distance)
    total = np.log(model.predict(held) / base)
    correction = np.divide(total, factor, out=np.zeros(len(held)), where=factor > 0)
    return HeldOut.of_fold(fold, held, position, np.log(times[fold.held] / base), correction)


def _copy(model: TargetModel, domain: Domain, figures: Mapping[Context, Mapping[str, float]]) -> TargetModel:
    copy = TargetModel(model.target, model.level, model.n_jobs)
    copy.operators_, copy.additive_ = model.operators_, model.additive_
    copy.boosted_, copy.shrinkage_ = model.boosted_, model.shrinkage_
    copy.domain_, copy.figures_ = domain, dict(figures)
    copy.intervals_, copy.metrics_, copy.held_out_ = model.intervals_, dict(model.metrics_), None
    return copy
