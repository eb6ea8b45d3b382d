"""Regret of choosing settings: by hand on times that are known."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.predictors.rows import dataset, frame
from trainpilot.predictors.labels import clean
from trainpilot.predictors.regret import settings_regret


def at_two_settings(factor):
    """Every step on one thread, and on two in ``factor`` of the time."""
    rows = dataset(models=3, batches=(8,), noise=0.0)
    return [
        dataclasses.replace(row, threads=threads, row_id=f"{row.row_id}{threads}", step_time_s=row.step_time_s * scale)
        for row in rows
        for threads, scale in ((1, 1.0), (2, factor))
    ]


def test_right_predictions_have_no_regret():
    labels = clean(frame(at_two_settings(0.5)))
    found = settings_regret(labels, labels.values["step_time_s"])
    assert found["steps"] == 30
    assert found["mean"] == found["p90"] == 0.0
    assert found["best_chosen"] == 1.0
    assert found["default"] == pytest.approx(0.0)  # two threads are the default


def test_a_default_that_is_slower_costs_what_it_costs():
    labels = clean(frame(at_two_settings(1.25)))
    found = settings_regret(labels, labels.values["step_time_s"])
    assert found["default"] == pytest.approx(0.25)
    assert found["mean"] == 0.0


def test_a_predictor_that_is_always_wrong_pays_the_difference():
    labels = clean(frame(at_two_settings(0.5)))
    found = settings_regret(labels, 1.0 / labels.values["step_time_s"])
    assert found["mean"] == pytest.approx(1.0)
    assert found["best_chosen"] == 0.0


def test_a_predictor_that_is_wrong_for_a_third_of_the_steps():
    labels = clean(frame(at_two_settings(0.5)))
    predicted = labels.values["step_time_s"].copy()
    wrong = {name for number, name in enumerate(sorted(set(labels.table.model_hash))) if number % 3 == 0}
    for row, model in enumerate(labels.table.model_hash):
        if model in wrong:
            predicted[row] = 1.0 / predicted[row]
    found = settings_regret(labels, predicted)
    assert found["mean"] == pytest.approx(1.0 / 3)
    assert found["best_chosen"] == pytest.approx(2.0 / 3)


def test_without_alternatives_there_is_no_regret():
    alone = clean(frame(dataset(models=2, batches=(8,))))
    assert settings_regret(alone, alone.values["step_time_s"]) is None
    few = clean(frame([row for row in at_two_settings(0.5) if row.family == "mlp"]))
    assert settings_regret(few, few.values["step_time_s"]) is None


def test_steps_that_were_never_held_out_do_not_count():
    labels = clean(frame(at_two_settings(0.5)))
    predicted = labels.values["step_time_s"].copy()
    predicted[labels.table.family == "mlp"] = math.nan
    assert settings_regret(labels, predicted)["steps"] == 27


def test_only_allowed_types_are_compared():
    rows = at_two_settings(0.5)
    half = [dataclasses.replace(row, dtype="bfloat16", row_id=f"{row.row_id}h", step_time_s=1e-6) for row in rows]
    labels = clean(frame(rows + half))
    found = settings_regret(labels, labels.values["step_time_s"], dtypes=("float32",))
    assert found["steps"] == 30
    assert found["default"] == pytest.approx(0.0)
    assert settings_regret(labels, labels.values["step_time_s"])["default"] > 100
