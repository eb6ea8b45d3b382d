"""Regret of choosing settings: by hand on times that are known."""

from __future__ import annotations

import dataclasses

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


def test_a_setting_that_is_always_faster_is_always_chosen():
    found = settings_regret(clean(frame(at_two_settings(0.5))), n_jobs=1)
    assert found["steps"] == 30
    assert found["mean"] == pytest.approx(0.0)
    assert found["best_chosen"] == 1.0
    assert found["default"] == pytest.approx(0.0)  # two threads are the default


def test_a_default_that_is_slower_costs_what_it_costs():
    found = settings_regret(clean(frame(at_two_settings(1.25))), n_jobs=1)
    assert found["default"] == pytest.approx(0.25)
    assert found["mean"] == pytest.approx(0.0)


def test_without_alternatives_there_is_no_regret():
    assert settings_regret(clean(frame(dataset(models=2, batches=(8,)))), n_jobs=1) is None
    few = clean(frame([row for row in at_two_settings(0.5) if row.family == "mlp"]))
    assert settings_regret(few, n_jobs=1) is None


def test_only_allowed_types_are_compared():
    rows = at_two_settings(0.5)
    half = [dataclasses.replace(row, dtype="bfloat16", row_id=f"{row.row_id}h", step_time_s=1e-6) for row in rows]
    found = settings_regret(clean(frame(rows + half)), n_jobs=1, dtypes=("float32",))
    assert found["steps"] == 30
    assert found["default"] == pytest.approx(0.0)
