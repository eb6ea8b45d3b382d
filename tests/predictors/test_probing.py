"""Probing: when it is worth it, what it costs, and how it is joined with the prediction."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import trainpilot as tp
from trainpilot.backends import ExecutionSettings
from trainpilot.errors import MeasurementError
from trainpilot.predictors import Estimate
from trainpilot.predictors.probing import Probe, combine, run_probe, why_probe
from trainpilot.store import open_store

Z90 = 1.6448536269514722


def probe(seconds, spread):
    return Probe(seconds, spread, 10, 0.1, None, 1.0, "")


def test_a_prediction_as_sure_as_the_probe_counts_as_much():
    half = math.exp(Z90 * 0.1)
    joined = combine(Estimate(1.0, 1 / half, half, 0.9), probe(4.0, 0.1))
    assert joined.value == pytest.approx(2.0)
    assert joined.high == pytest.approx(2.0 * math.exp(Z90 * 0.1 / math.sqrt(2)))
    assert joined.low == pytest.approx(2.0 / math.exp(Z90 * 0.1 / math.sqrt(2)))
    assert joined.level == 0.9


def test_a_prediction_without_an_interval_counts_little():
    joined = combine(Estimate(10.0), probe(1.0, 0.06))
    weight = 0.06**-2 / (0.06**-2 + math.log(2) ** -2)
    assert joined.value == pytest.approx(10.0 ** (1 - weight))
    assert joined.value < 1.03


def test_without_a_prediction_the_probe_is_all():
    joined = combine(None, probe(2.0, 0.06))
    assert joined.value == pytest.approx(2.0)
    assert joined.high == pytest.approx(2.0 * math.exp(Z90 * 0.06))


@given(
    predicted=st.floats(1e-6, 1e6),
    width=st.floats(1.001, 100.0),
    measured=st.floats(1e-6, 1e6),
    spread=st.floats(0.01, 1),
)
def test_the_joined_time_lies_between_both(predicted, width, measured, spread):
    joined = combine(Estimate(predicted, predicted / width, predicted * width, 0.9), probe(measured, spread))
    low, high = sorted((predicted, measured))
    assert low * (1 - 1e-9) <= joined.value <= high * (1 + 1e-9)
    assert 0 < joined.low < joined.value < joined.high


@pytest.mark.parametrize(
    ("step", "in_range", "said"),
    [
        (None, True, "nothing is known"),
        (Estimate(1.0, 0.9, 1.1, 0.9), False, "out of range"),
        (Estimate(1.0), True, "no interval"),
        (Estimate(1.0, 0.5, 1.5, 0.9), True, "wide"),
        (Estimate(1.0, 0.9, 1.1, 0.9), True, ""),
    ],
)
def test_a_probe_is_made_only_where_it_tells_more(step, in_range, said):
    reason = why_probe(step, in_range)
    assert said in reason
    assert bool(reason) == bool(said)


def workload():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return tp.Workload(model, example_inputs=lambda batch: torch.randn(batch, 16), batch_size=8)


def test_a_probe_runs_real_steps_and_keeps_them_as_a_row():
    work = workload()
    before = {name: value.clone() for name, value in work.model.state_dict().items()}
    found = run_probe(work, "cpu", ExecutionSettings(threads=1), tp.profile(work))
    assert found.steps >= 3
    assert 0 < found.step_time_s < found.cost_s
    assert f"{found.steps} real steps" in found.note
    with open_store() as store:
        (row,) = store.rows()
    assert row.step_time_s == found.step_time_s
    assert (row.sweep_id, row.origin, row.phase, row.threads) == ("probe", "training", "train_step", 1)
    for name, value in work.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in work.model.parameters())


def test_a_probed_prediction_says_that_it_was_measured_and_what_it_cost():
    found = tp.predict(workload(), "cpu", settings=ExecutionSettings(threads=1), probe=True)
    assert found.source == "measured"
    assert found.step_time_s.low is not None
    assert found.setup_time_s is not None
    (told,) = [note for note in found.notes if note.startswith("probed: ")]
    assert "which cost" in told
    assert "because the workload is out of range" in told
    assert not any("nothing was measured" in note for note in found.notes)


def test_what_would_not_fit_is_not_probed():
    work = workload()
    profile = tp.profile(work)
    huge = dataclasses.replace(profile, memory=dataclasses.replace(profile.memory, peak_bytes=1 << 60))
    with pytest.raises(MeasurementError, match="not probed"):
        run_probe(work, "cpu", ExecutionSettings(threads=1), huge)
