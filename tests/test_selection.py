"""The choice between backends: crossover, confidence, limits, exclusions, load, rules."""

import dataclasses
import math
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from trainpilot.backends import Backend, DeviceInfo, ExecutionSettings, Usability
from trainpilot.errors import (
    BackendUnusableError,
    MeasurementError,
    NoDataError,
    ObservationError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from trainpilot.predictors import Estimate, Prediction
from trainpilot.selection import (
    Limits,
    adjust_for_load,
    choose,
    interference_factor,
    probability_smallest,
    select,
    usable_backend,
)
from trainpilot.selection.machine import predict_under_load
from trainpilot.workload import Workload

MACHINE_MODULE = "trainpilot.selection.machine"

WORKLOAD = Workload("mlp")
IDLE: dict[str, Any] = {"cpu_utilization": 0.0}
PROFILE: Any = {"has_conv": True, "has_rnn": False}


def lognormal(value: float, sigma: float, level: float = 0.9) -> Estimate:
    """The estimate whose interval is that of a lognormal distribution of the given width."""
    factor = math.exp(sigma * NormalDist().inv_cdf((1 + level) / 2))
    return Estimate(value, value / factor, value * factor, level)


def prediction(
    backend: str,
    total: Estimate | float | None,
    *,
    energy: float | None = None,
    peak: float | None = 2.0**20,
    source: str = "learned",
) -> Prediction:
    if isinstance(total, float | int):
        total = lognormal(float(total), 0.03)
    return Prediction(
        backend=backend,
        step_time_s=total and total.map(lambda value: value / 100),
        setup_time_s=None,
        epoch_time_s=total,
        total_time_s=total,
        peak_memory_bytes=None if peak is None else Estimate(peak),
        energy_j=None if energy is None else Estimate(energy),
        source=source,  # type: ignore[arg-type]
        in_range=total is not None,
    )


def unknown(backend: str) -> Prediction:
    return prediction(backend, None, source="unknown", peak=None)


class FakeBackend(Backend):
    """A backend whose probe gives a fixed answer."""

    def __init__(
        self, name: str, reason: str = "", memory: int | None = None, utilization: float | None = None
    ) -> None:
        self.name = name  # type: ignore[misc]
        self.reason = reason
        self.memory = memory
        self.utilization = utilization

    def probe(self, timeout_s: float = 30.0) -> Usability:
        return Usability(available=True, usable=not self.reason, reason=self.reason)

    def info(self) -> DeviceInfo:
        return DeviceInfo(self.name, "a double", self.memory, self.memory, self.utilization)

    def calibration(self, settings=None, *, refresh=False, run=True):
        raise AssertionError("not asked for here")

    def prepare(self, workload, settings=None, *, clock=None):
        raise AssertionError("not asked for here")


# ------------------------------------------------------------------ D01: launch overhead and one-off costs


def crossover(flops: float, *, steps: int = 1000, once_s: float = 0.0) -> dict[str, Prediction]:
    """Totals of the two devices of the case: 1e10 FLOP/s, and 1e12 FLOP/s behind 2 ms per step; 5% noise."""
    cpu = steps * flops / 1e10
    accelerator = once_s + steps * (0.002 + flops / 1e12)
    return {"cpu": prediction("cpu", lognormal(cpu, 0.05)), "cuda": prediction("cuda", lognormal(accelerator, 0.05))}


@pytest.mark.parametrize(("flops", "backend"), [(1e6, "cpu"), (1e7, "cpu"), (1e8, "cuda"), (1e9, "cuda")])
def test_d01_crossover(flops, backend):
    selection = choose(crossover(flops))
    assert selection.backend == backend
    assert selection.clear
    assert selection.confidence > 0.99


def test_d01_near_the_crossover_no_clear_difference():
    flops = 0.002 / (1e-10 - 1e-12)
    assert flops == pytest.approx(2.02e7, rel=1e-3)
    selection = choose(crossover(flops))
    assert (selection.backend, selection.clear) == ("cpu", False)
    assert selection.confidence == pytest.approx(0.5, abs=1e-3)
    assert "no clear difference" in selection.reasons[0]
    assert "cpu 2.02 s" in selection.reasons[0]
    assert "cuda 2.02 s" in selection.reasons[0]


def test_d01_simpler_backend_wins_a_tie_even_where_the_other_is_slightly_faster():
    selection = choose(
        {"cuda": prediction("cuda", lognormal(1.0, 0.3)), "cpu": prediction("cpu", lognormal(1.05, 0.3))}
    )
    assert (selection.backend, selection.clear) == ("cpu", False)
    # P(cpu fastest) = Phi((ln 1 - ln 1.05) / (0.3 sqrt 2)), the closed form for two lognormals
    assert selection.confidence == pytest.approx(NormalDist().cdf(-math.log(1.05) / (0.3 * math.sqrt(2))), abs=2e-3)


def test_d01_one_off_cost_decides_a_short_job():
    # 100 steps of 10 ms on the cpu; the accelerator's step is 3 ms but compiling takes 30 s.
    selection = choose(crossover(1e8, steps=100, once_s=30.0))
    assert selection.backend == "cpu"
    assert selection.confidence > 0.99
    long = choose(crossover(1e8, steps=100_000, once_s=30.0))
    assert long.backend == "cuda"


# ------------------------------------------------------------------ D05: dtype follows the probe


@pytest.mark.parametrize(
    ("times_ms", "expected"),
    [({"float32": 7.2, "bfloat16": 1.6, "float16": 189.0}, "bfloat16"), ({"float32": 1.6, "bfloat16": 7.2}, "float32")],
)
def test_d05_dtype_choice_follows_the_probe(monkeypatch, times_ms, expected):
    def predict(workload, backend="cpu", *, settings=None, profile=None, predictor=None, probe=False):
        milliseconds = times_ms.get(settings.dtype)
        return unknown(backend) if milliseconds is None else prediction(backend, milliseconds, source="analytic")

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    variants = [ExecutionSettings(dtype=dtype) for dtype in ("float32", "bfloat16", "float16")]
    selection = select(WORKLOAD, backends=[FakeBackend("cpu")], settings=variants, hardware_state=IDLE, profile=PROFILE)
    assert selection.settings == ExecutionSettings(dtype=expected)
    assert selection.backend == "cpu"
    unmeasured = [reason for reason in selection.excluded.values() if reason.startswith("no data")]
    assert len(unmeasured) == 3 - len(times_ms)


def test_a_candidate_that_cannot_be_probed_is_excluded_with_its_reason(monkeypatch):
    def predict(workload, backend="cpu", *, settings=None, profile=None, predictor=None, probe=False):
        assert probe
        if settings.dtype == "float32":
            raise MeasurementError("the workload is not probed: its step needs about 90.0 GiB")
        return prediction(backend, 1.0)

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    variants = [ExecutionSettings(threads=1, dtype=dtype) for dtype in ("float32", "bfloat16")]
    selection = select(
        WORKLOAD, backends=[FakeBackend("cpu")], settings=variants, hardware_state=IDLE, profile=PROFILE, probe=True
    )
    assert selection.settings == variants[1]
    assert list(selection.excluded.values()) == ["the workload is not probed: its step needs about 90.0 GiB"]


@pytest.mark.parametrize("source", ["measured", "learned"])
def test_a_probe_ran_beside_the_load_already(monkeypatch, source):
    found = prediction("cpu", 1.0, source=source)
    monkeypatch.setattr("trainpilot.predictors.predict", lambda *args, **options: found)
    one = ExecutionSettings(threads=1)
    loaded = predict_under_load(WORKLOAD, FakeBackend("cpu"), 1.0, settings=one, profile=PROFILE, probe=True)
    assert (loaded == found) == (source == "measured")


def test_d05_unsupported_dtype_is_excluded_with_its_reason(monkeypatch):
    def predict(workload, backend="cpu", *, settings=None, profile=None, predictor=None, probe=False):
        if settings.dtype == "float16":
            raise UnsupportedError("conv2d has no float16 kernel on cpu")
        return prediction(backend, 1.0)

    monkeypatch.setattr("trainpilot.predictors.predict", predict)
    variants = [ExecutionSettings(dtype="float32"), ExecutionSettings(dtype="float16")]
    selection = select(WORKLOAD, backends=[FakeBackend("cpu")], settings=variants, hardware_state=IDLE, profile=PROFILE)
    assert selection.settings == variants[0]
    assert list(selection.excluded.values()) == ["conv2d has no float16 kernel on cpu"]


# ------------------------------------------------------------------ D09: visible is not usable


def test_d09_unusable_backend_is_excluded_and_the_next_is_taken(monkeypatch):
    monkeypatch.setattr("trainpilot.predictors.predict", lambda w, b, **_: prediction(b, 1.0))
    backends = [FakeBackend("cuda", "no kernel image is available"), FakeBackend("cpu")]
    selection = select(WORKLOAD, backends=backends, hardware_state=IDLE, profile=PROFILE)
    assert selection.backend == "cpu"
    assert selection.excluded == {"cuda": "no kernel image is available"}
    assert list(selection.predictions) == ["cpu"]


def test_d09_forced_unusable_backend_is_an_error_with_the_reason():
    with pytest.raises(BackendUnusableError, match="cuda.*no kernel image is available"):
        usable_backend(FakeBackend("cuda", "no kernel image is available"))
    with pytest.raises(BackendUnusableError, match="no kernel image is available"):
        select(WORKLOAD, backends=[FakeBackend("cuda", "no kernel image is available")], hardware_state=IDLE)


def test_unknown_backend_is_named_with_the_valid_ones():
    with pytest.raises(UnknownNameError, match=r"tpu.*cpu"):
        select(WORKLOAD, backends=["tpu"])


# ------------------------------------------------------------------ what is excluded, and confidence


def test_single_candidate_is_certain():
    selection = choose({"cpu": prediction("cpu", 3.0)}, excluded={"ane": "Core ML needs macOS"})
    assert (selection.backend, selection.confidence, selection.clear) == ("cpu", 1.0, True)
    assert selection.excluded == {"ane": "Core ML needs macOS"}
    assert selection.source == "learned"


def test_c03_backend_without_data_is_never_chosen_and_limits_the_confidence():
    selection = choose({"ane": unknown("ane"), "cpu": prediction("cpu", 3.0)})
    assert selection.backend == "cpu"
    assert selection.excluded["ane"].startswith("no data for backend ane: run")
    assert selection.confidence == 0.8
    assert any("nothing is known of ane" in reason for reason in selection.reasons)


def test_rule_guesses_do_not_count_as_data():
    guess = prediction("ane", 0.001, source="rules")
    assert choose({"ane": guess, "cpu": prediction("cpu", 3.0)}).backend == "cpu"


def test_candidate_that_does_not_fit_is_excluded():
    candidates = {"cuda": prediction("cuda", 1.0, peak=3e9), "cpu": prediction("cpu", 9.0, peak=3e9)}
    selection = choose(candidates, limits=Limits(memory_bytes={"cuda": 2 * 2**30, "cpu": 2**34}))
    assert selection.backend == "cpu"
    assert selection.excluded["cuda"] == "does not fit: needs 2.79 GiB of 2.00 GiB"


def test_nothing_left_is_an_error_with_every_reason():
    candidates = {"cuda": unknown("cuda"), "cpu": prediction("cpu", 9.0, peak=3e9)}
    with pytest.raises(NoDataError, match=r"cuda: no data.*cpu: does not fit|cpu: does not fit.*cuda: no data"):
        choose(candidates, limits=Limits(memory_bytes={"cpu": 2**20}))


def test_unknown_memory_is_said():
    selection = choose({"cpu": prediction("cpu", 9.0, peak=None)}, limits=Limits(memory_bytes={"cpu": 1}))
    assert any("memory" in reason and "unknown" in reason for reason in selection.reasons)


def test_energy_objective():
    candidates = {"cpu": prediction("cpu", 10.0, energy=50.0), "cuda": prediction("cuda", 1.0, energy=300.0)}
    assert choose(candidates).backend == "cuda"
    assert choose(candidates, objective="energy").backend == "cpu"
    with pytest.raises(NoDataError, match="no meter"):
        choose({"cpu": prediction("cpu", 10.0)}, objective="energy")
    with pytest.raises(UnknownNameError, match="time, energy"):
        choose(candidates, objective="money")


def test_power_limit():
    candidates = {"cpu": prediction("cpu", 10.0, energy=300.0), "cuda": prediction("cuda", 1.0, energy=300.0)}
    selection = choose(candidates, limits=Limits(power_w=100.0))
    assert selection.backend == "cpu"
    assert selection.excluded == {"cuda": "needs 300 W on average, over the limit of 100 W"}
    with pytest.raises(UsageError, match="above 0"):
        Limits(power_w=0.0)


def test_tie_between_accelerators_does_not_go_to_a_slow_cpu():
    candidates = {
        "cpu": prediction("cpu", lognormal(100.0, 0.1)),
        "xpu": prediction("xpu", lognormal(1.0, 0.1)),
        "cuda": prediction("cuda", lognormal(1.0, 0.1)),
    }
    selection = choose(candidates)
    assert (selection.backend, selection.clear) == ("cuda", False)


def test_to_dict_is_the_documented_part_of_the_json():
    content = choose({"cpu": prediction("cpu", 3.0)}, excluded={"ane": "Core ML needs macOS"}).to_dict()
    assert content["selected"] == "cpu"
    assert content["confidence"] == 1.0
    assert content["excluded"] == {"ane": "Core ML needs macOS"}
    assert content["predictions"][0]["backend"] == "cpu"
    assert set(content["predictions"][0]["total_time_s"]) == {"value", "low", "high", "level"}


# ------------------------------------------------------------------ probabilities


@pytest.mark.parametrize(
    ("a", "b", "sigma_a", "sigma_b"), [(1.0, 1.2, 0.1, 0.3), (5.0, 2.0, 0.5, 0.5), (1.0, 1.0, 0.2, 0.7)]
)
def test_probability_agrees_with_the_closed_form_for_two(a, b, sigma_a, sigma_b):
    found = probability_smallest((lognormal(a, sigma_a), lognormal(b, sigma_b, level=0.8)))
    expected = NormalDist().cdf(math.log(b / a) / math.hypot(sigma_a, sigma_b))
    assert found[0] == pytest.approx(expected, abs=1e-3)
    assert sum(found) == pytest.approx(1.0)


def test_probability_of_equals_is_shared():
    assert probability_smallest([lognormal(2.0, 0.2)] * 3) == pytest.approx((1 / 3, 1 / 3, 1 / 3), abs=1e-6)
    certain = Estimate(2.0, 2.0, 2.0, 0.9)
    assert probability_smallest([certain, certain]) == pytest.approx((0.5, 0.5))
    assert probability_smallest([certain, Estimate(3.0, 3.0, 3.0, 0.9)]) == pytest.approx((1.0, 0.0))


def test_wide_estimates_are_less_sure_than_narrow_ones():
    wide = probability_smallest((Estimate(1.0), Estimate(1.5)))[0]
    narrow = probability_smallest((lognormal(1.0, 0.05), lognormal(1.5, 0.05)))[0]
    assert wide == pytest.approx(NormalDist().cdf(math.log(1.5) / (0.4 * math.sqrt(2))), abs=1e-3)
    assert narrow > 0.999


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0.01, 1.0)), min_size=1, max_size=4), st.floats(1e-3, 1e3))
@hypothesis_settings(max_examples=25, deadline=None)
def test_probabilities_sum_to_one_and_ignore_the_unit(values, unit):
    found = probability_smallest([lognormal(value, sigma) for value, sigma in values])
    scaled = probability_smallest([lognormal(value * unit, sigma) for value, sigma in values])
    assert sum(found) == pytest.approx(1.0)
    assert all(0 <= p <= 1 for p in found)
    assert scaled == pytest.approx(found, abs=1e-6)


# ------------------------------------------------------------------ load


@pytest.mark.parametrize(
    ("utilization", "threads", "cores", "factor"),
    [(0.0, 2, 2, 1.0), (0.5, 2, 2, 1.5), (1.0, 2, 2, 2.0), (0.5, 1, 2, 1.0), (1.0, 1, 2, 1.5), (0.25, 8, 4, 1.25)],
)
def test_interference_is_a_fair_share(utilization, threads, cores, factor):
    assert interference_factor(utilization, threads=threads, cores=cores) == pytest.approx(factor)


def test_adjustment_multiplies_every_time_and_says_so():
    before = prediction("cpu", Estimate(10.0, 8.0, 14.0, 0.9))
    after = adjust_for_load(before, 1.5, 0.5)
    assert after.total_time_s == Estimate(15.0, 12.0, 21.0, 0.9)
    assert after.step_time_s.value == pytest.approx(0.15)
    assert after.peak_memory_bytes == before.peak_memory_bytes
    assert "assumed" in after.notes[-1]
    assert "1.50" in after.notes[-1]
    assert adjust_for_load(before, 1.0, 0.0) == before
    assert adjust_for_load(before, 1.004, 0.004) == before  # it would read "multiplied by 1.00, because 0% is busy"


def test_load_can_change_the_choice(monkeypatch):
    totals = {"cpu": lognormal(1.0, 0.02), "cuda": lognormal(1.5, 0.02)}
    monkeypatch.setattr("trainpilot.predictors.predict", lambda w, b, **_: prediction(b, totals[b]))
    monkeypatch.setattr(f"{MACHINE_MODULE}.usable_cores", lambda: 2)
    backends = [FakeBackend("cpu"), FakeBackend("cuda", utilization=0.0)]
    idle = select(WORKLOAD, backends=backends, hardware_state=IDLE, profile=PROFILE)
    busy = select(WORKLOAD, backends=backends, hardware_state={"cpu_utilization": 1.0}, profile=PROFILE)
    assert (idle.backend, busy.backend) == ("cpu", "cuda")
    shared = [FakeBackend("cpu"), FakeBackend("cuda", utilization=1.0)]
    both = select(WORKLOAD, backends=shared, hardware_state={"cpu_utilization": 1.0}, profile=PROFILE)
    assert both.backend == "cpu"


@pytest.mark.parametrize("value", [-0.1, 1.1, "0.5", True, None, math.nan])
def test_wrong_utilization_is_refused(value):
    with pytest.raises(ObservationError, match="cpu_utilization"):
        select(WORKLOAD, backends=[FakeBackend("cpu")], hardware_state={"cpu_utilization": value}, profile=PROFILE)


# ------------------------------------------------------------------ memory of the device, rules


def test_memory_of_the_device_and_the_given_limit_are_used(monkeypatch):
    monkeypatch.setattr("trainpilot.predictors.predict", lambda w, b, **_: prediction(b, 1.0, peak=2.0**30))
    small, large = FakeBackend("cuda", memory=2**29), FakeBackend("cpu", memory=2**34)
    assert select(WORKLOAD, backends=[small, large], hardware_state=IDLE, profile=PROFILE).backend == "cpu"
    with pytest.raises(NoDataError, match="does not fit"):
        select(WORKLOAD, backends=[large], hardware_state=IDLE, profile=PROFILE, memory_limit_bytes=2**29)


def without_data(monkeypatch):
    def predict(workload, backend, **_):
        raise NoDataError("nothing")

    monkeypatch.setattr("trainpilot.predictors.predict", predict)


@pytest.mark.parametrize(
    ("names", "busy", "conv", "rnn", "backend", "confidence"),
    [
        (("cpu",), 0.0, True, False, "cpu", 1.0),
        (("cpu", "ane"), 0.3, False, True, "cpu", 0.95),
        (("cpu", "ane"), 0.3, True, False, "ane", 0.85),
        (("cpu", "ane"), 0.7, True, False, "cpu", 0.8),
    ],
)
def test_rules_answer_where_no_candidate_has_data(monkeypatch, names, busy, conv, rnn, backend, confidence):
    without_data(monkeypatch)
    selection = select(
        WORKLOAD,
        backends=[FakeBackend(name) for name in names],
        hardware_state={"cpu_utilization": busy},
        profile={"has_conv": conv, "has_rnn": rnn},
    )
    assert (selection.backend, selection.confidence, selection.source) == (backend, confidence, "rules")
    assert "rule" in selection.reasons[0]
    assert set(selection.excluded) == set(names) - {backend}


def test_rules_do_not_answer_where_one_candidate_has_data(monkeypatch):
    monkeypatch.setattr(
        "trainpilot.predictors.predict", lambda w, b, **_: prediction(b, 1.0) if b == "cpu" else unknown(b)
    )
    selection = select(
        WORKLOAD, backends=[FakeBackend("cpu"), FakeBackend("ane")], hardware_state=IDLE, profile=PROFILE
    )
    assert (selection.backend, selection.source) == ("cpu", "learned")


def test_rules_never_answer_for_energy(monkeypatch):
    without_data(monkeypatch)
    with pytest.raises(NoDataError):
        select(WORKLOAD, backends=[FakeBackend("cpu")], hardware_state=IDLE, profile=PROFILE, objective="energy")


def test_rules_answer_that_is_no_candidate(monkeypatch):
    without_data(monkeypatch)
    selection = select(
        WORKLOAD, backends=[FakeBackend("cuda"), FakeBackend("xpu")], hardware_state=IDLE, profile=PROFILE
    )
    assert (selection.backend, selection.confidence, selection.clear) == ("cuda", 0.5, False)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 0.5))
@hypothesis_settings(max_examples=30, deadline=None)
def test_clear_choice_is_the_fastest_and_sure(cpu, cuda, sigma):
    selection = choose(
        {"cpu": prediction("cpu", lognormal(cpu, sigma)), "cuda": prediction("cuda", lognormal(cuda, sigma))}
    )
    if selection.clear:
        assert selection.backend == ("cpu" if cpu <= cuda else "cuda")
        assert selection.confidence >= 0.6
    else:
        assert selection.backend == "cpu"
        assert 0.4 - 1e-6 <= selection.confidence < 0.6


def test_selection_is_frozen():
    selection = choose({"cpu": prediction("cpu", 3.0)})
    with pytest.raises(dataclasses.FrozenInstanceError):
        selection.backend = "ane"  # type: ignore[misc]


def test_empty_lists_are_usage_errors():
    with pytest.raises(UsageError, match="at least one"):
        select(WORKLOAD, backends=[])
    with pytest.raises(UsageError, match="at least one"):
        select(WORKLOAD, backends=[FakeBackend("cpu")], settings=[])
    with pytest.raises(UsageError, match="memory limit"):
        select(WORKLOAD, memory_limit_bytes=0)


def test_reasons_tell_of_a_load_factor(monkeypatch):
    monkeypatch.setattr("trainpilot.predictors.predict", lambda w, b, **_: prediction(b, 1.0))
    monkeypatch.setattr(f"{MACHINE_MODULE}.usable_cores", lambda: 2)
    busy = select(WORKLOAD, backends=[FakeBackend("cpu")], hardware_state={"cpu_utilization": 0.5}, profile=PROFILE)
    told = [reason for reason in busy.reasons if "multiplied" in reason]
    assert len(told) == 1
    assert told[0].startswith("cpu: times are multiplied by 1.50, because 50%")
    idle = select(WORKLOAD, backends=[FakeBackend("cpu")], hardware_state=IDLE, profile=PROFILE)
    assert not any("multiplied" in reason for reason in idle.reasons)


def test_sampled_load_leaves_out_this_process(monkeypatch):
    from trainpilot.hardware.others import OthersMeter
    from trainpilot.selection import load

    # Both of two cores are busy, this process being one and a half of them: a quarter of the machine is taken.
    seconds = iter([0.0, 1.0])
    now = {"s": 0.0}

    def read():
        now["s"] = next(seconds)
        return dict.fromkeys((0, 1), (now["s"], now["s"]))

    meter = OthersMeter(read, own=lambda: 1.5 * now["s"], clock=iter([0.0, 1.0]).__next__, cpus=[0, 1])
    monkeypatch.setattr(load, "OthersMeter", lambda: meter)
    monkeypatch.setattr(load, "usable_cores", lambda: 2)
    assert load.others_utilization(0.0) == pytest.approx(0.25)


def test_more_threads_than_cores_is_a_usage_error(monkeypatch):
    monkeypatch.setattr(f"{MACHINE_MODULE}.usable_cores", lambda: 2)
    wanted = ExecutionSettings(threads=3)
    with pytest.raises(UsageError, match="threads must be at most 2, .*got 3"):
        select(WORKLOAD, backends=[FakeBackend("cpu")], settings=wanted, hardware_state=IDLE, profile=PROFILE)


def test_what_can_be_changed_is_told_first_and_small_sizes_in_bytes():
    with pytest.raises(NoDataError, match=r"chosen: cpu: does not fit: needs 5 MiB of 1 bytes; cuda: no driver"):
        choose(
            {"cpu": prediction("cpu", 1.0, peak=5.0 * 2**20)},
            limits=Limits(memory_bytes={"cpu": 1}),
            excluded={"cuda": "no driver"},
        )


@pytest.mark.parametrize("given", ["mlp", None, object()])
def test_only_a_workload_can_be_selected_for(given):
    with pytest.raises(UsageError, match="make one with Workload"):
        select(given, backends=[FakeBackend("cpu")])


@pytest.mark.parametrize("name", [None, 3])
def test_backend_that_is_no_name(name):
    with pytest.raises(UnknownNameError, match="backend"):
        usable_backend(name)
    with pytest.raises(UnknownNameError, match="backend"):
        select(WORKLOAD, backends=[name])
