"""The documented agent: six methods, dicts in and out, and its refusals."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from trainpilot.errors import BackendUnusableError, NoDataError, ObservationError, UnknownNameError, UsageError
from trainpilot.hardware import Calibration
from trainpilot.hardware_orchestrator import MAX_AGE_S, HardwareOrchestrator
from trainpilot.predictors import Estimate, Prediction
from trainpilot.profiling.result import DOCUMENTED_KEYS

MODULE = "trainpilot.hardware_orchestrator"
CONFIG = {"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}
NOW = 1_000_000.0


@pytest.fixture
def agent() -> HardwareOrchestrator:
    return HardwareOrchestrator(clock=lambda: NOW)


def state(**changes: Any) -> dict[str, Any]:
    return {"ane_available": False, "cpu_utilization": 0.3, "timestamp": NOW, **changes}


def six_keys(**changes: Any) -> dict[str, Any]:
    return {
        "params": 50_000,
        "layers": 3,
        "has_conv": True,
        "has_rnn": False,
        "depth": 5,
        "avg_layer_size": 1000,
        **changes,
    }


def prediction(backend: str, total: float | None, source: str = "learned") -> Prediction:
    estimate = None if total is None else Estimate(total, total * 0.9, total * 1.1, 0.9)
    return Prediction(
        backend=backend,
        step_time_s=estimate,
        setup_time_s=None,
        epoch_time_s=estimate,
        total_time_s=estimate,
        peak_memory_bytes=None,
        energy_j=None,
        source=source,  # type: ignore[arg-type]
        in_range=True,
        notes=() if total is not None else (f"no data for backend {backend}",),
    )


class Environment:
    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def execute_training(self, backend, workload_profile):
        self.calls.append((backend, dict(workload_profile)))
        return {"status": "success", "backend": backend, "execution_time": 1.0, "message": "done"}


# ------------------------------------------------------------------ the loop of the founding documents


def test_observe_think_act(agent):
    profile = six_keys()
    agent.observe(state(), profile)
    assert agent.think() == "cpu"
    environment = Environment()
    assert agent.act("cpu", environment)["status"] == "success"
    assert environment.calls == [("cpu", profile)]


def test_act_without_observation_trains_as_well(agent):
    environment = Environment()
    agent.act("cpu", environment)
    assert environment.calls == [("cpu", {})]


@pytest.mark.parametrize(
    ("ane", "busy", "conv", "rnn", "answer"),
    [
        (False, 0.3, True, False, ("cpu", 1.0)),
        (True, 0.3, False, True, ("cpu", 0.95)),
        (True, 0.2, True, False, ("ane", 0.85)),
        (True, 0.6, True, False, ("cpu", 0.8)),
    ],
)
def test_rules_answer_a_six_key_profile(agent, caplog, ane, busy, conv, rnn, answer):
    caplog.set_level(logging.INFO, "trainpilot")
    profile = six_keys(has_conv=conv, has_rnn=rnn)
    hardware = state(ane_available=ane, cpu_utilization=busy)
    assert agent.select_backend(profile, hardware) == answer
    assert "a rule decides" in caplog.text
    agent.observe(hardware, profile)
    assert agent.think() == answer[0]


def test_think_before_observe(agent):
    with pytest.raises(ObservationError, match="observe"):
        agent.think()


def test_think_long_after_observe():
    times = iter([NOW, NOW + MAX_AGE_S + 1])
    agent = HardwareOrchestrator(clock=lambda: next(times))
    agent.observe(state(), six_keys())
    with pytest.raises(ObservationError, match="61 s old"):
        agent.think()


def test_observation_is_a_copy(agent):
    hardware, profile = state(), six_keys()
    agent.observe(hardware, profile)
    hardware["cpu_utilization"] = 7
    profile.clear()
    assert agent.think() == "cpu"


# ------------------------------------------------------------------ observations that cannot be right


@pytest.mark.parametrize("key", ["ane_available", "cpu_utilization", "timestamp"])
def test_missing_state_key(agent, key):
    hardware = state()
    del hardware[key]
    for call in (agent.observe, lambda h, p: agent.select_backend(p, h)):
        with pytest.raises(ObservationError, match=key):
            call(hardware, six_keys())


@pytest.mark.parametrize("key", DOCUMENTED_KEYS)
def test_missing_profile_key(agent, key):
    profile = six_keys()
    del profile[key]
    for call in (
        agent.observe,
        lambda h, p: agent.select_backend(p, h),
        lambda h, p: agent.predict_performance(p, "cpu"),
    ):
        with pytest.raises(ObservationError, match=key):
            call(state(), profile)


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_utilization": -0.01},
        {"cpu_utilization": 1.01},
        {"cpu_utilization": 30},
        {"cpu_utilization": math.nan},
        {"cpu_utilization": "0.3"},
        {"cpu_utilization": True},
        {"cpu_utilization": None},
        {"ane_available": 1},
        {"ane_available": "yes"},
        {"ane_available": None},
        {"timestamp": NOW - MAX_AGE_S - 0.5},
        {"timestamp": NOW + 5},
        {"timestamp": math.inf},
        {"timestamp": math.nan},
        {"timestamp": "now"},
    ],
)
def test_wrong_state_is_refused(agent, changes):
    with pytest.raises(ObservationError, match=next(iter(changes)) if "timestamp" not in changes else "."):
        agent.observe(state(**changes), six_keys())


@pytest.mark.parametrize(
    "changes", [{"params": -1}, {"params": "many"}, {"has_conv": 1}, {"has_rnn": None}, {"depth": math.inf}]
)
def test_wrong_profile_is_refused(agent, changes):
    with pytest.raises(ObservationError, match=next(iter(changes))):
        agent.observe(state(), six_keys(**changes))


def test_no_dicts_are_refused(agent):
    with pytest.raises(ObservationError, match="dict"):
        agent.observe(None, six_keys())
    with pytest.raises(ObservationError, match="dict"):
        agent.observe(state(), [1])


def test_limits_and_numpy_values_are_accepted(agent):
    for changes in (
        {"cpu_utilization": 0},
        {"cpu_utilization": 1.0},
        {"cpu_utilization": np.float32(0.5), "ane_available": np.bool_(False)},
        {"timestamp": NOW - MAX_AGE_S},
        {"timestamp": NOW + 0.5},
    ):
        agent.observe(state(**changes), six_keys())
        assert agent.think() == "cpu"


def test_refused_observation_leaves_the_last_one(agent):
    agent.observe(state(ane_available=True, cpu_utilization=0.1), six_keys())
    with pytest.raises(ObservationError):
        agent.observe(state(cpu_utilization=2), six_keys())
    assert agent.think() == "ane"


# ------------------------------------------------------------------ predictions behind the decision

SPEC = {"model": "small_cnn", "settings": {"layers": 3}, "batch_size": 32, "dataset_size": 100, "epochs": 1}


def full_profile(**changes: Any) -> dict[str, Any]:
    return six_keys(workload=SPEC, batch_size=32, dataset_size=100, epochs=1, **changes)


def fake_predictions(monkeypatch, totals: dict[str, float | None]) -> None:
    def predict(workload, backend="cpu", **_):
        total = totals[backend]
        return prediction(backend, total, "learned" if total is not None else "unknown")

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    monkeypatch.setattr("trainpilot.selection.machine.usable_cores", lambda: 2)


def test_predictions_decide_where_both_candidates_have_data(agent, monkeypatch):
    fake_predictions(monkeypatch, {"cpu": 10.0, "ane": 1.0})
    backend, confidence = agent.select_backend(full_profile(has_rnn=True), state(ane_available=True))
    assert backend == "ane"  # the rules would say cpu for a recurrent model
    assert confidence > 0.99


def test_cpu_time_is_adjusted_for_the_observed_load(agent, monkeypatch):
    fake_predictions(monkeypatch, {"cpu": 1.0, "ane": 1.4})
    idle = agent.select_backend(full_profile(), state(ane_available=True, cpu_utilization=0.0))
    busy = agent.select_backend(full_profile(), state(ane_available=True, cpu_utilization=1.0))
    assert (idle[0], busy[0]) == ("cpu", "ane")


@pytest.mark.parametrize("totals", [{"cpu": 10.0, "ane": None}, {"cpu": None, "ane": 1.0}])
def test_rules_answer_where_one_candidate_has_no_data(agent, monkeypatch, totals):
    fake_predictions(monkeypatch, totals)
    assert agent.select_backend(full_profile(), state(ane_available=True)) == ("ane", 0.85)


def test_unavailable_engine_is_not_predicted(agent, monkeypatch):
    fake_predictions(monkeypatch, {})  # asking for any backend would raise KeyError
    assert agent.select_backend(full_profile(), state(ane_available=False)) == ("cpu", 1.0)


# ------------------------------------------------------------------ predict_performance


def test_predicted_seconds_are_those_of_the_plan_in_the_profile(agent, monkeypatch):
    seen: list[Any] = []

    def predict(workload, backend="cpu", **_):
        seen.append(workload.plan)
        return prediction(backend, 2.5)

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    assert agent.predict_performance(full_profile(), "cpu") == 2.5
    assert (seen[0].dataset_size, seen[0].epochs, seen[0].batch_size) == (100, 1, 32)
    changed = {**full_profile(), "dataset_size": 640, "epochs": 3}
    agent.predict_performance(changed, "cpu")
    assert (seen[1].dataset_size, seen[1].epochs, seen[1].steps) == (640, 3, 60)


def test_unknown_is_nan_and_told_once(agent, monkeypatch, caplog):
    fake_predictions(monkeypatch, {"ane": None})
    values = [agent.predict_performance(full_profile(), "ane") for _ in range(3)]
    assert all(math.isnan(value) for value in values)
    assert f"{values[0]:.2f}" == "nan"
    assert caplog.text.count("no data for backend ane") == 1


def test_unusable_backend_is_nan_for_a_six_key_profile(agent, monkeypatch, caplog):
    class Unusable:
        def calibration(self):
            raise BackendUnusableError("Core ML needs macOS")

    monkeypatch.setattr(f"{MODULE}.get_backend", lambda name: Unusable())
    assert math.isnan(agent.predict_performance(six_keys(), "ane"))
    assert "Core ML needs macOS" in caplog.text


def test_raised_no_data_is_nan(agent, monkeypatch):
    def predict(workload, backend="cpu", **_):
        raise NoDataError("run a benchmark")

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    assert math.isnan(agent.predict_performance(full_profile(), "cpu"))


def test_six_key_profile_is_answered_from_its_parameters(agent, monkeypatch):
    class Calibrated:
        def calibration(self):
            figures = {"matmul_flops_per_s": 3e9}
            return Calibration("m", "cpu", 1, "float32", figures, {}, NOW)

    monkeypatch.setattr(f"{MODULE}.get_backend", lambda name: Calibrated())
    # 6 * 50,000 parameters * 50,000 samples / 3e9 FLOP/s
    assert agent.predict_performance(six_keys(), "cpu") == pytest.approx(5.0)
    assert agent.predict_performance(six_keys(dataset_size=1000, epochs=2), "cpu") == pytest.approx(0.2)
    found = agent.explain_performance(six_keys(), "cpu")
    assert (found.source, found.in_range) == ("analytic", False)
    assert found.step_time_s.value == pytest.approx(0.0032)
    assert found.total_time_s.low is None
    assert "assumed" in found.notes[0]


def test_unknown_backend(agent):
    with pytest.raises(UnknownNameError, match=r"tpu.*cpu"):
        agent.predict_performance(six_keys(), "tpu")


# ------------------------------------------------------------------ profile_workload


def test_profile_has_the_documented_keys_counted_on_the_real_model(agent):
    profile = agent.profile_workload(CONFIG, 100)
    assert set(DOCUMENTED_KEYS) <= set(profile)
    assert type(profile) is dict
    from trainpilot import zoo

    name, settings = zoo.from_model_config(CONFIG)
    model = zoo.get(name).build(settings)
    assert profile["params"] == sum(p.numel() for p in model.parameters())
    assert (profile["has_conv"], profile["has_rnn"], profile["layers"]) == (True, False, 3)
    assert profile["avg_layer_size"] == pytest.approx(profile["params"] / 3)
    assert (profile["dataset_size"], profile["batch_size"], profile["epochs"]) == (100, 32, 1)


def test_profile_can_be_observed_and_predicted(agent):
    profile = agent.profile_workload(CONFIG, 100)
    agent.observe(state(), profile)
    assert agent.think() == "cpu"
    assert math.isnan(agent.predict_performance(profile, "ane"))


@pytest.mark.parametrize(
    ("config", "size", "error"),
    [
        ({"name": "small_cn", "layers": 3}, 100, UnknownNameError),
        ({"layers": 3}, 100, UsageError),
        ({**CONFIG, "has_rnn": True}, 100, UsageError),
        ({**CONFIG, "colour": 3}, 100, UsageError),
        (CONFIG, 0, UsageError),
        (CONFIG, 2.5, UsageError),
    ],
)
def test_wrong_configuration_is_refused(agent, config, size, error):
    with pytest.raises(error):
        agent.profile_workload(config, size)


# ------------------------------------------------------------------ what is no profile, no backend, no environment


@pytest.mark.parametrize("action", [None, 3])
def test_act_needs_the_name_of_a_backend(agent, action):
    with pytest.raises(UnknownNameError, match="auto"):
        agent.act(action, Environment())


@pytest.mark.parametrize("environment", [None, object(), {}])
def test_act_needs_an_environment(agent, environment):
    with pytest.raises(UsageError, match="execute_training"):
        agent.act("cpu", environment)


@pytest.mark.parametrize("spec", ["x", 3, {}, {"settings": {}}])
def test_workload_of_a_profile_must_be_one(agent, spec):
    with pytest.raises(ObservationError, match="workload must be what profile_workload gave"):
        agent.predict_performance(six_keys(workload=spec), "cpu")


@pytest.mark.parametrize(
    "changes", [{"dataset_size": "x"}, {"dataset_size": 0}, {"epochs": 1.5}, {"batch_size": None}, {"batch_size": True}]
)
def test_plan_in_a_profile_must_be_whole_numbers(agent, changes):
    with pytest.raises(ObservationError, match=f"{next(iter(changes))} must be a whole number"):
        agent.predict_performance(six_keys(**changes), "cpu")


def test_assumed_dataset_size_is_told_once(agent, monkeypatch, caplog):
    class Calibrated:
        def calibration(self):
            return Calibration("m", "cpu", 1, "float32", {"matmul_flops_per_s": 3e9}, {}, NOW)

    monkeypatch.setattr(f"{MODULE}.get_backend", lambda name: Calibrated())
    agent.predict_performance(six_keys(dataset_size=np.int64(1000)), "cpu")
    assert "assumed" not in caplog.text
    for _ in range(2):
        agent.predict_performance(six_keys(), "cpu")
    assert caplog.text.count("50000 samples are assumed") == 1
