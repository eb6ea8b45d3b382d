import gc
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.benchmarking.doubles import FakeClock, nothing
from trainpilot.benchmarking import ReplayMeter, TimingLimits, label_of, measure_steps
from trainpilot.benchmarking.timing import QUANTILES, clock_tick, count_outliers, quantile
from trainpilot.errors import UsageError


def twenty_windows() -> TimingLimits:
    return TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=20, max_windows=20)


def test_b01_first_step_is_a_label_of_its_own():
    clock = FakeClock()
    timing = measure_steps(clock.step([1.0], 0.005), nothing, clock=clock, tick_s=0.0, limits=twenty_windows())
    assert timing.first_step_s == pytest.approx(1.0)
    assert timing.step_time_s == pytest.approx(0.005)
    assert timing.steps == 20
    # What a job costs: the first step once, the others as often as they run.
    assert timing.first_step_s + 9 * timing.step_time_s == pytest.approx(1.045)
    assert timing.first_step_s + 9_999 * timing.step_time_s == pytest.approx(50.995)


def test_b01_with_a_real_clock():
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.2 if calls == 1 else 0.005)

    timing = measure_steps(step, nothing, limits=TimingLimits(target_s=0.1, warmup_s=0.02))
    assert timing.first_step_s >= 0.2
    assert timing.quantiles_s["min"] >= 0.005
    assert timing.quantiles_s["min"] < 0.05


def test_warm_up_steps_are_no_label():
    clock = FakeClock()
    slow_start = [1.0, 0.5, 0.3, 0.2, 0.15, 0.12]
    limits = TimingLimits(target_s=1.0, warmup_s=10.0, max_s=100.0)
    timing = measure_steps(clock.step(slow_start, 0.1), nothing, clock=clock, tick_s=0.0, limits=limits)
    assert timing.quantiles_s["max"] == pytest.approx(0.1)


def test_warm_up_is_bounded_when_steps_never_settle():
    clock = FakeClock()
    times = [0.1 * 1.5**i for i in range(100)]
    limits = TimingLimits(target_s=1.0, warmup_s=1.0, max_s=20.0, min_windows=1)
    timing = measure_steps(clock.step(times, 1e9), nothing, clock=clock, tick_s=0.0, limits=limits)
    assert timing.stepping_s < 20.0 * 2.5  # the window in flight may end beyond the limit


def test_b02_work_that_is_only_enqueued_is_waited_for():
    clock = FakeClock()
    calls = []

    class FakeAsync:
        pending = 0

        def step(self) -> None:
            calls.append("step")
            clock.advance(0.0001)
            self.pending += 1

        def synchronize(self) -> None:
            calls.append("synchronize")
            clock.advance(0.05 * self.pending)
            self.pending = 0

    device = FakeAsync()
    timing = measure_steps(device.step, device.synchronize, clock=clock, tick_s=0.0)
    assert timing.step_time_s == pytest.approx(0.0501)
    assert calls[0] == "synchronize"
    assert calls[-1] == "synchronize"


def test_b02_a_rate_above_the_peak_is_invalid():
    clock = FakeClock()
    # 1e12 FLOP in 0.01 s is 1e14 FLOP/s, on a device that cannot exceed 1e13.
    timing = measure_steps(clock.step([], 0.01), nothing, clock=clock, tick_s=0.0, flops=1e12, peak_flops_per_s=1e13)
    assert timing.step_time_s is None
    assert "1e+14 FLOP/s" in timing.invalid
    timing = measure_steps(clock.step([], 0.01), nothing, clock=clock, tick_s=0.0, flops=1e10, peak_flops_per_s=1e13)
    assert timing.invalid == ""
    assert timing.step_time_s == pytest.approx(0.01)


def test_b02_a_clock_that_goes_backwards_is_invalid():
    clock = FakeClock()
    timing = measure_steps(clock.step([0.01] * 5 + [-3600.0], 0.01), nothing, clock=clock, tick_s=0.0)
    assert timing.step_time_s is None
    assert timing.steps == 0
    assert "backwards" in timing.invalid
    assert timing.first_step_s == pytest.approx(0.01)


def test_a_clock_that_jumps_ahead_is_one_outlier():
    clock = FakeClock()
    steps = clock.step([0.01] * 12 + [3600.0], 0.01)
    limits = TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=20, max_windows=20)
    timing = measure_steps(steps, nothing, clock=clock, tick_s=0.0, limits=limits)
    assert timing.step_time_s == pytest.approx(0.01)
    assert timing.outliers == 1
    assert timing.quantiles_s["max"] == pytest.approx(3600.0)


def test_b06_a_noisy_neighbour_is_an_outlier_and_not_the_label():
    clock = FakeClock()
    # One step to begin with, one of warm-up, then the case's twenty.
    times = [0.010, 0.010] + [0.010] * 19 + [0.210]
    timing = measure_steps(clock.step(times, 0.010), nothing, clock=clock, tick_s=0.0, limits=twenty_windows())
    assert timing.step_time_s == pytest.approx(0.010)
    assert timing.outliers == 1
    assert timing.windows == 20
    assert timing.quantiles_s["p75"] == timing.quantiles_s["p25"]
    assert timing.quantiles_s["max"] == pytest.approx(0.210)
    assert not timing.noisy


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("raises", [True, False])
def test_b06_garbage_collection_is_as_before(before, raises):
    clock = FakeClock()
    seen = []
    calls = 0

    def step() -> None:
        nonlocal calls
        calls += 1
        seen.append(gc.isenabled())
        clock.advance(0.01)
        if raises and calls == 7:
            raise RuntimeError("half way")

    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        if raises:
            with pytest.raises(RuntimeError, match="half way"):
                measure_steps(step, nothing, clock=clock, tick_s=0.0)
        else:
            measure_steps(step, nothing, clock=clock, tick_s=0.0)
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()
    assert not any(seen)


def test_b09_windows_are_a_hundred_ticks_of_a_coarse_clock():
    clock = FakeClock(resolution_s=0.0156)
    limits = TimingLimits(target_s=5.0, max_s=30.0)
    timing = measure_steps(clock.step([], 142e-6), nothing, clock=clock, tick_s=0.0156, limits=limits)
    assert timing.invalid == ""
    assert not timing.coarse
    assert timing.wall_s / timing.windows >= 1.56 * 0.99
    assert timing.step_time_s == pytest.approx(142e-6, rel=0.02)


def test_b09_a_clock_too_coarse_for_the_budget_is_flagged():
    clock = FakeClock(resolution_s=0.0156)
    limits = TimingLimits(target_s=0.2, warmup_s=0.1, max_s=0.4)
    timing = measure_steps(clock.step([], 142e-6), nothing, clock=clock, tick_s=0.0156, limits=limits)
    assert timing.coarse
    assert timing.noisy
    assert timing.step_time_s is not None
    assert 142e-6 / 2 < timing.step_time_s < 142e-6 * 2


def test_b09_a_clock_that_stands_still_gives_no_label():
    clock = FakeClock(resolution_s=1000.0)
    limits = TimingLimits(target_s=0.2, warmup_s=0.1, max_s=0.4, max_windows=10)
    timing = measure_steps(clock.step([], 0.0), nothing, clock=clock, tick_s=0.0, limits=limits)
    assert timing.step_time_s is None
    assert "did not advance" in timing.invalid
    assert timing.first_step_s is None


def test_b09_a_tiny_real_step_is_positive_and_finite():
    timing = measure_steps(lambda: None, nothing, limits=TimingLimits(target_s=0.05, warmup_s=0.02))
    assert timing.invalid == ""
    for value in (timing.step_time_s, timing.first_step_s, *timing.quantiles_s.values()):
        assert value > 0
        assert math.isfinite(value)
    assert timing.steps > timing.windows  # grouped: no step is timed alone


def test_b09_spread_over_the_windows_is_flagged():
    clock = FakeClock()
    # 10% of the windows take twenty times as long: the 95th percentile is far beyond three medians.
    times = [0.01, 0.01] + ([0.01] * 9 + [0.2]) * 2
    timing = measure_steps(clock.step(times, 0.01), nothing, clock=clock, tick_s=0.0, limits=twenty_windows())
    assert timing.noisy
    assert timing.step_time_s == pytest.approx(0.01)


def test_long_steps_end_near_the_time_limit():
    clock = FakeClock()
    limits = TimingLimits(target_s=0.3, warmup_s=0.2, max_s=5.0)
    timing = measure_steps(clock.step([], 2.0), nothing, clock=clock, tick_s=0.0, limits=limits)
    assert timing.windows == 1
    assert timing.step_time_s == pytest.approx(2.0)
    assert timing.stepping_s == pytest.approx(6.0)


def test_cpu_time_is_kept_apart_from_wall_time():
    clock, cpu = FakeClock(), FakeClock()

    def step() -> None:
        clock.advance(0.01)
        cpu.advance(0.004)

    timing = measure_steps(step, nothing, clock=clock, cpu_clock=cpu, tick_s=0.0)
    assert timing.cpu_s / timing.wall_s == pytest.approx(0.4)


def test_energy_is_per_step_and_missing_without_a_meter():
    clock = FakeClock()
    timing = measure_steps(
        clock.step([], 0.01), nothing, clock=clock, tick_s=0.0, meter=ReplayMeter([40.0]), limits=twenty_windows()
    )
    assert timing.energy_j == pytest.approx(2.0)
    timing = measure_steps(clock.step([], 0.01), nothing, clock=clock, tick_s=0.0)
    assert timing.energy_j is None


def test_the_statistic_of_the_label_can_be_chosen():
    windows = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert label_of(windows) == 3.0
    assert label_of(windows, "min") == 1.0
    assert label_of(windows, "p25") == 2.0
    with pytest.raises(UsageError, match="statistic 'mode': valid are min"):
        label_of(windows, "mode")


def test_clock_tick_of_the_real_clock_is_small_and_positive():
    assert 0 < clock_tick(time.perf_counter) < 1e-3


def test_clock_tick_of_a_coarse_clock_is_found():
    assert clock_tick(lambda: math.floor(time.perf_counter() / 0.01) * 0.01) == pytest.approx(0.01, rel=1e-3)


def test_clock_tick_of_a_still_clock_is_zero():
    assert clock_tick(lambda: 7.0) == 0.0


@pytest.mark.parametrize(
    ("limits", "name"),
    [({"target_s": 0.0}, "target_s"), ({"warmup_s": -1.0}, "warmup_s"), ({"min_windows": 300}, "min_windows")],
)
def test_limits_that_cannot_be_right(limits, name):
    with pytest.raises(UsageError, match=name):
        TimingLimits(**limits)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60))
def test_quantiles_are_ordered_and_inside(values):
    found = [quantile(values, share) for share in QUANTILES.values()]
    assert found == sorted(found)
    assert found[0] == min(values)
    assert found[-1] == max(values)


@given(st.lists(st.floats(0.001, 1.0), min_size=5, max_size=60), st.floats(0.1, 100.0))
def test_a_change_of_unit_changes_no_outlier_and_scales_the_quantiles(values, factor):
    scaled = [value * factor for value in values]
    assert quantile(scaled, 0.25) == pytest.approx(factor * quantile(values, 0.25))
    assert 0 <= count_outliers(values) < len(values)


@settings(max_examples=20)
@given(st.floats(2e-3, 3.0), st.floats(1.0, 10.0))
def test_constant_steps_give_exactly_their_time(seconds, factor):
    clock = FakeClock()
    timing = measure_steps(clock.step([seconds * factor], seconds), nothing, clock=clock, tick_s=0.0)
    assert timing.step_time_s == pytest.approx(seconds, rel=1e-6)
    assert timing.first_step_s == pytest.approx(seconds * factor, rel=1e-6)
    assert not timing.noisy


def test_what_slows_down_the_control_workload_is_divided_out():
    """The machine is slow in turns, by a factor that changes between windows; the control tells it."""
    clock = FakeClock()
    factors = [1.0, 1.0, 3.0, 3.0, 2.0, 2.0, 1.5, 1.5, 2.5, 2.5]
    windows = 0

    def factor() -> float:
        return factors[min(windows, len(factors) - 1)]

    def step() -> None:
        clock.advance(0.01 * factor())

    def control() -> float:
        nonlocal windows
        # Before and after a window the machine is as slow as during it.
        found = 0.001 * factor()
        windows += 1
        return found

    limits = TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=9, max_windows=9, min_window_s=0.001)
    timing = measure_steps(step, nothing, clock=clock, tick_s=0.0, limits=limits, control=control)
    assert timing.control_time_s == pytest.approx(0.002)
    # A window is divided by the mean of the control before and after it; most of them agree on the undisturbed ratio.
    assert timing.step_time_s / timing.control_time_s == pytest.approx(10.0, rel=0.35)
    assert timing.quantiles_s["min"] < timing.quantiles_s["max"]


def test_a_steady_machine_needs_no_correction():
    clock = FakeClock()
    limits = TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=5, max_windows=5)
    timing = measure_steps(
        clock.step([1.0], 0.005), nothing, clock=clock, tick_s=0.0, limits=limits, control=lambda: 0.001
    )
    assert timing.step_time_s == pytest.approx(0.005)
    assert timing.control_time_s == 0.001


def timed_in_turns(turns: list[float], controls: list[float]):
    """Ten windows of one step each, as long as ``turns`` says, with eleven control runs around them."""
    clock = FakeClock()
    limits = TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=10, max_windows=10, min_window_s=0.001)
    around = iter(controls)
    # The first step and one block of warm-up come before the windows.
    step = clock.step([0.01, 0.01, *turns], 1e9)
    return measure_steps(step, nothing, clock=clock, tick_s=0.0, limits=limits, control=lambda: next(around))


def test_spread_that_the_control_workload_shares_is_not_noise():
    # Half of the windows take twice as long, and so does the control workload beside them; one lies in between.
    turns = [0.01] * 4 + [0.015] + [0.02] * 5
    timing = timed_in_turns(turns, [0.001] * 5 + [0.002] * 6)
    assert not timing.noisy
    # Every window is ten times the control runs around it: four of 0.001 s, one of 0.0015 s, five of 0.002 s.
    assert timing.control_time_s == pytest.approx(0.00175)
    assert timing.step_time_s == pytest.approx(0.0175)
    assert timing.quantiles_s["min"] == pytest.approx(0.01)  # as they were
    assert timing.quantiles_s["p25"] == pytest.approx(0.01)
    assert timing.quantiles_s["max"] == pytest.approx(0.02)


def test_the_same_spread_beside_a_steady_control_workload_is_noise():
    timing = timed_in_turns([0.01] * 4 + [0.015] + [0.02] * 5, [0.001] * 11)
    assert timing.noisy
    assert timing.step_time_s == pytest.approx(0.0175)


def test_single_slow_control_runs_do_not_move_the_label():
    # Every third control run is caught by something: two thirds of the windows have one beside them.
    timing = timed_in_turns([0.01] * 10, [0.001, 0.009, 0.001] * 3 + [0.001, 0.009])
    assert timing.step_time_s == pytest.approx(0.01)
    assert timing.control_time_s == pytest.approx(0.005)


@given(
    st.lists(st.floats(0.005, 0.05), min_size=9, max_size=9), st.lists(st.floats(1e-4, 0.1), min_size=10, max_size=10)
)
def test_the_label_is_never_outside_the_windows(turns, controls):
    clock = FakeClock()
    limits = TimingLimits(target_s=1e-9, warmup_s=0.0, max_s=1e9, min_windows=9, max_windows=9, min_window_s=0.001)
    around = iter(controls)
    step = clock.step([0.01, 0.01, *turns], 1e9)
    timing = measure_steps(step, nothing, clock=clock, tick_s=0.0, limits=limits, control=lambda: next(around))
    found = timing.quantiles_s
    assert found["min"] * (1 - 1e-9) <= timing.step_time_s <= found["max"] * (1 + 1e-9)


def test_spread_of_the_control_workload_alone_is_noise():
    timing = timed_in_turns([0.01] * 10, [0.001] * 5 + [0.002] * 6)
    assert timing.noisy
    assert timing.quantiles_s["min"] == pytest.approx(timing.quantiles_s["max"])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_control_workload_is_short_and_leaves_the_random_state_alone(threads):
    import torch

    from trainpilot.benchmarking.control import control_workload

    before = torch.random.get_rng_state()
    run = control_workload(threads)
    assert 0 < run() < 1.0
    assert torch.equal(torch.random.get_rng_state(), before)
