"""Remaining time of a running job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.errors import UsageError
from trainpilot.predictors import RemainingTime


def test_e03_a_resumed_job_goes_by_the_steps_of_this_session():
    job = RemainingTime(total_steps=1000, start_step=900)
    job.add(20.0, steps=10)
    assert job.remaining_s() == pytest.approx(180.0)
    assert job.session_s == 20.0


def test_e03_b_preparation_is_no_step():
    job = RemainingTime(total_steps=1000)
    for _ in range(10):
        job.add(6.0)
    assert job.remaining_s() == pytest.approx(5940.0)


def test_e03_c_already_done():
    job = RemainingTime(total_steps=1000, start_step=1200)
    assert job.already_done
    assert job.remaining_s(known_parts_s=30.0) == 0.0
    assert str(job) == "already done"


def test_known_parts_are_added():
    job = RemainingTime(10)
    job.add(2.0)
    assert job.remaining_s(known_parts_s=7.5) == pytest.approx(9 * 2.0 + 7.5)


def test_one_disturbed_step_does_not_move_the_rate():
    job = RemainingTime(100)
    for duration in [1.0] * 9 + [100.0]:
        job.add(duration)
    assert job.remaining_s() == pytest.approx(90.0)


def test_the_rate_follows_a_machine_that_becomes_slower():
    job = RemainingTime(1000)
    for duration in [1.0] * 200 + [3.0] * 60:
        job.add(duration)
    assert job.remaining_s() == pytest.approx(740 * 3.0)


def test_before_the_first_step_the_prediction_answers_or_nobody():
    assert RemainingTime(10).remaining_s() is None
    assert str(RemainingTime(10)) == "unknown"
    assert RemainingTime(10, predicted_step_s=0.5).remaining_s() == 5.0


def test_impossible_counts_are_refused():
    with pytest.raises(UsageError):
        RemainingTime(-1)
    with pytest.raises(UsageError):
        RemainingTime(1).add(-1.0)
    with pytest.raises(UsageError):
        RemainingTime(1).add(float("nan"))


@given(st.integers(0, 1000), st.integers(0, 2000), st.lists(st.floats(0, 100), max_size=80))
def test_never_negative(total, start, durations):
    job = RemainingTime(total, start)
    for duration in durations:
        job.add(duration)
    remaining = job.remaining_s()
    assert remaining is None or remaining >= 0
