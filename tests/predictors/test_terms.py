"""Amounts and prices of a step."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predictors.rows import FIGURES, frame, group, measurement, model_step, profile_of
from trainpilot.errors import PredictorError
from trainpilot.hardware import Calibration
from trainpilot.predictors.analytic import calibrated_step_time_s
from trainpilot.predictors.table import Context, context_of_row, table_of_frame, table_of_profile
from trainpilot.predictors.terms import (
    STEP_TERM_NAMES,
    STEP_TERMS,
    WORK_INDEX,
    measure_work,
    term_amounts,
    unit_costs_s,
)
from trainpilot.profiling.result import OP_CLASSES


def amounts(groups):
    return dict(zip(STEP_TERM_NAMES, term_amounts(measure_work(groups)[None])[0], strict=True))


def test_amounts_are_added_up_by_class():
    found = amounts(
        [
            group("matmul", flops=100, size=30, calls=2),
            group("matmul", flops=50, size=10, calls=1, phase="backward"),
            group("norm", size=8, calls=4),
            group("elementwise", size=6, calls=5, phase="loss"),
            group("optimizer", size=70, calls=3, phase="optimizer"),
        ]
    )
    expected = dict.fromkeys(STEP_TERM_NAMES, 0.0)
    expected |= {
        "matmul_flops": 150,
        "compute_bytes": 40,
        "norm_bytes": 8,
        "elementwise_bytes": 6,
        "optimizer_bytes": 70,
    }
    expected |= {"calls": 12, "optimizer_calls": 3, "step": 1}
    assert found == expected


def test_every_class_has_a_price_for_its_flops_or_bytes_and_for_its_calls():
    for op_class in OP_CLASSES:
        bare = amounts([])
        assert amounts([group(op_class, size=10, calls=0)]) != bare, op_class
        assert amounts([group(op_class, calls=1)]) != bare, op_class


def test_arithmetic_of_the_optimizer_phase_is_priced_as_optimizer_whatever_its_class():
    found = amounts([group("elementwise", size=70, calls=3, phase="optimizer")])
    assert (found["optimizer_bytes"], found["elementwise_bytes"]) == (70, 0)
    assert (found["optimizer_calls"], found["calls"]) == (3, 0)


def test_row_and_profile_give_the_same_amounts():
    groups, params = model_step("mobilenet", 64, 8, 3)
    row = measurement(groups, 0.1, family="mobilenet", params=params)
    from_row = table_of_frame(frame([row]))
    from_profile = table_of_profile(profile_of(row), context_of_row(dataclasses.asdict(row)))
    np.testing.assert_allclose(from_row.work, from_profile.work, rtol=1e-6)
    np.testing.assert_array_equal(from_row.facts, from_profile.facts)
    assert from_row.context[0] == from_profile.context[0] == Context("here", "cpu", 1, "float32", "contiguous")


def test_batch_scale_leaves_calls_and_the_optimizer_alone():
    groups = [group("matmul", flops=100, size=40, calls=2), group("optimizer", size=70, calls=3, phase="optimizer")]
    half = measure_work(groups, batch_scale=0.5)
    assert half[WORK_INDEX["flops.matmul"]] == 50
    assert half[WORK_INDEX["bytes.matmul"]] == 20
    assert half[WORK_INDEX["calls.matmul"]] == 2
    assert half[WORK_INDEX["bytes.optimizer"]] == 70


def test_calibration_prices_a_step_by_hand():
    row = measurement([group("matmul", flops=4e9, size=1e9, calls=100)], None)
    calibration = Calibration("here", "cpu", 1, "float32", FIGURES, {}, 0.0)
    table = table_of_profile(profile_of(row), Context("here", "cpu", 1, "float32", "contiguous"))
    # 4e9 / 4e10 + 0.5 * 1e9 / 1e10 + 100 * 1.5 * 3e-6 + 0.5 * 1e-4
    assert calibrated_step_time_s(table, calibration)[0] == pytest.approx(0.1 + 0.05 + 4.5e-4 + 5e-5)


def test_a_figure_of_its_own_beats_a_factor_on_another():
    row = measurement([group("depthwise_conv", flops=4e9, calls=0)], None)
    table = table_of_profile(profile_of(row), Context("here", "cpu", 1, "float32", "contiguous"))
    fallback = Calibration("here", "cpu", 1, "float32", FIGURES, {}, 0.0)
    assert calibrated_step_time_s(table, fallback)[0] == pytest.approx(4e9 * 8 / 2e10 + 5e-5)
    own = dataclasses.replace(fallback, figures={**FIGURES, "depthwise_conv_flops_per_s": 1e9})
    assert calibrated_step_time_s(table, own)[0] == pytest.approx(4.0 + 5e-5)


@pytest.mark.parametrize("value", [None, 0.0, -1.0, math.nan, math.inf])
def test_a_calibration_without_a_usable_figure_is_refused_by_name(value):
    with pytest.raises(PredictorError, match="conv_flops_per_s"):
        unit_costs_s({**FIGURES, "conv_flops_per_s": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e39])
@pytest.mark.parametrize(
    ("field", "name"), [("flops", "flops.conv"), ("bytes_read", "bytes.conv"), ("calls", "calls.conv")]
)
def test_c05_a_count_that_is_not_finite_is_refused_by_name(field, name, value):
    with pytest.raises(PredictorError, match=name):
        measure_work([{**group("conv", flops=1.0), field: value}])


def test_c05_a_feature_that_is_not_finite_is_refused_by_name():
    row = measurement([group("conv", flops=1.0)], 1.0)
    profile = profile_of(row)
    wrong = dataclasses.replace(profile, features={**profile.features, "peak_bytes": math.inf})
    with pytest.raises(PredictorError, match="feature peak_bytes is not a finite number: inf"):
        table_of_profile(wrong, Context("here", "cpu", 1, "float32", "contiguous"))
    missing = {name: value for name, value in profile.features.items() if name != "layers"}
    with pytest.raises(PredictorError, match="feature layers is missing"):
        table_of_profile(
            dataclasses.replace(profile, features=missing), Context("here", "cpu", 1, "float32", "contiguous")
        )


def test_an_unknown_class_or_phase_is_refused():
    with pytest.raises(PredictorError, match="warp"):
        measure_work([{**group("conv"), "op_class": "warp"}])
    with pytest.raises(PredictorError, match="sideways"):
        measure_work([{**group("conv"), "phase": "sideways"}])


@given(
    flops=st.floats(0, 1e15), size=st.floats(0, 1e12), calls=st.integers(0, 10**6), op_class=st.sampled_from(OP_CLASSES)
)
def test_calibrated_time_is_positive_and_rises_with_every_amount(flops, size, calls, op_class):
    costs = unit_costs_s(FIGURES)

    def time(flops, size, calls):
        work = measure_work([group(op_class, flops=flops, size=size, calls=calls)])
        return float((term_amounts(work[None]) @ costs)[0])

    base = time(flops, size, calls)
    assert base > 0
    for more in ((flops * 2 + 1, size, calls), (flops, size * 2 + 1, calls), (flops, size, calls + 1)):
        assert time(*more) >= base


def test_the_documented_figures_price_every_term():
    assert {term.prices[-1].figure for term in STEP_TERMS} == set(FIGURES)
