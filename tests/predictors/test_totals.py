"""The arithmetic of a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.errors import UsageError
from trainpilot.predictors import Estimate, StepTimes, plan_times
from trainpilot.predictors.totals import weighted_sum
from trainpilot.workload import TrainingPlan


def e01_times(**changes):
    base = {
        "micro_batch": Estimate(0.040, 0.036, 0.050, 0.9),
        "last_micro_batch": Estimate(0.016, 0.014, 0.020, 0.9),
        "optimizer": Estimate(0.002, 0.001, 0.003, 0.9),
        "validation_batch": Estimate(0.1, 0.09, 0.12, 0.9),
        "setup": Estimate(5.0, 4.0, 6.0, 0.9),
    }
    return StepTimes(**{**base, **changes})


def test_e01_all_parts_of_a_plan():
    plan = TrainingPlan(1000, 32, epochs=3, accumulate=4, validation_size=480)
    times = plan_times(plan, e01_times())
    assert plan.validation_batches == 15  # 15 * 0.1 = 1.5 s
    assert times.epoch.value == pytest.approx(31 * 0.040 + 0.016 + 8 * 0.002)
    assert times.epoch.value == pytest.approx(1.272)
    assert times.validation is not None
    assert times.validation.value == pytest.approx(1.5)
    assert times.setup is not None
    assert times.setup.value == 5.0
    assert times.total.value == pytest.approx(13.316)
    assert times.total.low == pytest.approx(4 + 3 * (31 * 0.036 + 0.014 + 8 * 0.001 + 15 * 0.09))
    assert times.total.high == pytest.approx(6 + 3 * (31 * 0.050 + 0.020 + 8 * 0.003 + 15 * 0.12))
    assert times.total.level == 0.9


def test_e01_drop_last_has_no_partial_batch():
    plan = TrainingPlan(1000, 32, epochs=3, accumulate=4, drop_last=True)
    times = plan_times(plan, e01_times(last_micro_batch=None, validation_batch=None))
    # 31 micro-batches: seven optimizer steps of four, and one for the rest of three.
    assert times.epoch.value == pytest.approx(31 * 0.040 + 8 * 0.002)
    assert times.validation is None


def test_e01_trials_share_the_start_up():
    plan = TrainingPlan(1000, 32, epochs=3, accumulate=4, validation_size=480)
    times = plan_times(plan, e01_times())
    assert times.trials(200, shared_setup_s=5.0) == pytest.approx(200 * (13.316 - 5.0))
    assert times.trials(200) == pytest.approx(200 * 13.316)
    with pytest.raises(UsageError):
        times.trials(0)
    with pytest.raises(UsageError):
        times.trials(2, shared_setup_s=6.0)


def test_unknown_setup_is_left_out_and_stays_unknown():
    times = plan_times(TrainingPlan(64, 32), e01_times(setup=None, last_micro_batch=None, validation_batch=None))
    assert times.setup is None
    assert times.total.value == pytest.approx(2 * 0.040 + 2 * 0.002)


def test_a_part_without_an_interval_leaves_the_sum_without_one():
    times = plan_times(TrainingPlan(64, 32), e01_times(setup=Estimate(5.0), last_micro_batch=None))
    assert (times.total.low, times.total.high, times.total.level) == (None, None, None)
    assert times.epoch.low is not None


def test_data_smaller_than_a_batch_is_one_partial_batch():
    times = plan_times(TrainingPlan(8, 32, epochs=2), e01_times(setup=None, validation_batch=None))
    assert times.epoch.value == pytest.approx(0.016 + 0.002)
    assert times.total.value == pytest.approx(2 * 0.018)


def test_a_plan_with_a_part_of_unknown_time_is_refused():
    with pytest.raises(UsageError, match="last batch of 8"):
        plan_times(TrainingPlan(40, 32), e01_times(last_micro_batch=None))
    with pytest.raises(UsageError, match="2 validation batches"):
        plan_times(TrainingPlan(64, 32, validation_size=40), e01_times(validation_batch=None))


values = st.floats(1e-6, 1e4)


@given(
    st.integers(1, 10_000),
    st.integers(1, 512),
    st.integers(1, 50),
    st.integers(1, 16),
    st.tuples(values, values, values),
)
def test_more_epochs_never_take_less_and_bounds_keep_their_order(size, batch, epochs, accumulate, times):
    micro, last, optimizer = (Estimate(value, value / 2, value * 2, 0.9) for value in times)
    parts = StepTimes(micro, last, optimizer)
    shorter = plan_times(TrainingPlan(size, batch, epochs=epochs, accumulate=accumulate), parts).total
    longer = plan_times(TrainingPlan(size, batch, epochs=epochs + 1, accumulate=accumulate), parts).total
    assert longer.value > shorter.value
    assert 0 < shorter.low <= shorter.value <= shorter.high


@given(st.lists(st.tuples(st.integers(0, 1000), values), min_size=1, max_size=6))
def test_weighted_sum_scales_exactly(parts):
    estimates = [(count, Estimate(value, value / 2, value * 2, 0.9)) for count, value in parts]
    doubled = [(count, estimate.map(lambda x: 2 * x)) for count, estimate in estimates]
    assert weighted_sum(doubled).value == 2 * weighted_sum(estimates).value
