"""From rows to labels."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.predictors.rows import FIGURES, dataset, frame, group, measurement, model_step
from trainpilot.predictors.labels import clean
from trainpilot.predictors.table import Context

CONTEXT = Context("here", "cpu", 1, "float32", "contiguous")


def row(seconds=0.1, **changes):
    groups, params = model_step("mlp", 64, 8, 3)
    return measurement(groups, seconds, params=params, **changes)


def test_c05_bad_labels_are_dropped_with_a_count_by_reason():
    good = row(model="good")
    bad = [row(value, model=str(i)) for i, value in enumerate([math.nan, math.inf, 0.0, -1.0, 1e39, None, math.nan])]
    labels = clean(frame([good, *bad]))
    assert len(labels.table) == 1
    assert labels.rows == 1
    assert labels.dropped == {
        "step time is missing or NaN": 3,
        "step time is infinite": 1,
        "step time is not above 0": 2,
        "step time is longer than a day": 1,
    }


def test_c05_bad_features_are_dropped_with_a_count_by_reason():
    rows = [row(model="good")]
    for i, value in enumerate([math.nan, math.inf, 1e39]):
        rows.append(row(model=f"a{i}"))
        rows[-1] = dataclasses.replace(rows[-1], features={**rows[-1].features, "params": value})
        rows.append(measurement([group("conv", flops=value)], 0.1, model=f"b{i}"))
    labels = clean(frame(rows))
    assert len(labels.table) == 1
    assert labels.dropped == {"feature params is not a finite number": 3, "feature flops.conv is not a valid count": 3}


def test_repetitions_become_one_label_their_median():
    labels = clean(frame([row(seconds, repetition=i) for i, seconds in enumerate([0.1, 0.4, 0.2])]))
    assert list(labels.values["step_time_s"]) == [0.2]
    assert labels.rows == 3


def test_other_settings_are_other_configurations():
    labels = clean(frame([row(), row(threads=2), row(dtype="bfloat16"), row(machine_id="there")]))
    assert len(labels.table) == 4
    assert len(set(labels.table.context)) == 4


def test_disturbed_repetitions_go_where_a_steady_one_is_left():
    rows = [row(0.1), row(9.0, repetition=1, contended=True), row(5.0, repetition=2, noisy=True)]
    labels = clean(frame(rows))
    assert list(labels.values["step_time_s"]) == [0.1]
    assert labels.dropped == {"disturbed, and another repetition is not": 2}
    assert labels.contended == 0


def test_rows_taken_under_contention_are_left_out_unless_there_is_hardly_anything_else():
    disturbed = [row(9.0, model=f"d{i}", contended=True) for i in range(5)]
    few = clean(frame([*disturbed, *(row(model=str(i)) for i in range(7))]))
    assert len(few.table) == 12
    assert few.contended == 5
    enough = clean(frame([*disturbed, *(row(model=str(i)) for i in range(8))]))
    assert list(enough.values["step_time_s"]) == [0.1] * 8
    assert enough.dropped == {"something else used the machine": 5}


def test_setup_is_everything_before_the_first_regular_step():
    labels = clean(frame([row(0.1, setup_time_s=2.0, first_step_s=0.6), row(0.1, model="n")]))
    setup = labels.values["setup_time_s"]
    assert setup[0] == pytest.approx(2.0 + 0.5)
    assert math.isnan(setup[1])


def test_label_noise_is_the_mean_difference_between_repetitions():
    noise = clean(frame([row(0.10), row(0.11, repetition=1), row(0.5, model="single")])).noise
    assert noise["configurations"] == 1
    assert noise["mean"] == pytest.approx(0.1)
    assert clean(frame([row()])).noise == {
        "mean": None,
        "configurations": 0,
        "rules": {"here/1": "label, drift to the power 1.00, median of the rounds"},
    }


def test_calibration_figures_are_medians_by_context():
    rows = [
        row(calibration={**FIGURES, "dispatch_s": value}, repetition=i) for i, value in enumerate([1e-6, 9e-6, 2e-6])
    ]
    labels = clean(frame([*rows, row(threads=2, calibration={})]))
    assert labels.figures[CONTEXT]["dispatch_s"] == 2e-6
    assert set(labels.figures) == {CONTEXT}


def test_the_hash_names_rows_and_labels_but_not_their_order():
    rows = dataset(families=("mlp",), models=2)
    first = clean(frame(rows)).data_hash
    assert clean(frame(rows[::-1])).data_hash == first
    changed = [dataclasses.replace(rows[0], step_time_s=rows[0].step_time_s * 1.01), *rows[1:]]
    assert clean(frame(changed)).data_hash != first


def test_no_rows():
    labels = clean(frame([]))
    assert labels.rows == 0
    assert len(labels.table) == 0


def test_drift_of_the_machine_is_divided_out():
    """Half of the rows were taken while everything took twice as long, the control workload too."""
    rows = []
    for i in range(9):
        slow = 2.0 if i % 2 else 1.0
        rows.append(row(0.1 * (i + 1) * slow, model=f"m{i}", control_time_s=0.001 * slow))
    labels = clean(frame(rows))
    # Five of nine rows were quiet, so that is the usual condition.
    assert list(labels.values["step_time_s"]) == pytest.approx([0.1 * (i + 1) for i in range(9)])


def test_numbers_of_threads_have_their_own_usual_condition():
    rows = [row(0.1, model="a", control_time_s=0.001), row(0.1, model="a", threads=2, control_time_s=0.004)]
    assert list(clean(frame(rows)).values["step_time_s"]) == [0.1, 0.1]


def test_rows_without_a_control_stay_as_they_are():
    rows = [row(0.1, model="a", control_time_s=0.001), row(0.3, model="b"), row(0.4, model="c", control_time_s=0.002)]
    assert clean(frame(rows)).values["step_time_s"][1] == 0.3
