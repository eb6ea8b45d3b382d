"""The arithmetic of a training plan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.errors import UsageError
from trainpilot.workload import TrainingPlan


def test_e01_steps_of_a_plan_with_accumulation() -> None:
    plan = TrainingPlan(dataset_size=1000, batch_size=32, epochs=3, accumulate=4)
    assert (plan.full_batches, plan.last_batch_size, plan.batches_per_epoch) == (31, 8, 32)
    assert plan.optimizer_steps_per_epoch == 8
    assert plan.steps == 96
    dropped = TrainingPlan(dataset_size=1000, batch_size=32, epochs=3, accumulate=4, drop_last=True)
    assert (dropped.batches_per_epoch, dropped.last_batch_size, dropped.optimizer_steps_per_epoch) == (31, 0, 8)


def test_batch_larger_than_data_is_one_partial_batch() -> None:
    plan = TrainingPlan(dataset_size=10, batch_size=32)
    assert (plan.full_batches, plan.last_batch_size, plan.batches_per_epoch) == (0, 10, 1)
    with pytest.raises(UsageError, match="batch size of at most 10"):
        TrainingPlan(dataset_size=10, batch_size=32, drop_last=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("dataset_size", 0),
        ("epochs", 0),
        ("accumulate", 0),
        ("batch_size", True),
    ],
)
def test_impossible_counts_are_refused(field: str, value: int) -> None:
    arguments = {"dataset_size": 100, "batch_size": 10, field: value}
    with pytest.raises(UsageError, match=f"{field} must be a whole number of at least 1, got {value}"):
        TrainingPlan(**arguments)


def test_numpy_numbers_are_whole_numbers_too() -> None:
    plan = TrainingPlan(np.int64(100), np.int32(10))
    assert plan == TrainingPlan(100, 10)
    assert type(plan.batch_size) is int


@given(
    dataset=st.integers(1, 10_000),
    batch=st.integers(1, 500),
    accumulate=st.integers(1, 20),
    validation=st.integers(0, 999),
)
def test_every_sample_is_seen_once_per_epoch(dataset: int, batch: int, accumulate: int, validation: int) -> None:
    plan = TrainingPlan(dataset, batch, accumulate=accumulate, validation_size=validation)
    assert plan.full_batches * batch + plan.last_batch_size == dataset
    assert (plan.optimizer_steps_per_epoch - 1) * accumulate < plan.batches_per_epoch
    assert plan.optimizer_steps_per_epoch * accumulate >= plan.batches_per_epoch
    assert plan.validation_batches * batch >= validation > (plan.validation_batches - 1) * batch or validation == 0
