from __future__ import annotations

import math
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.errors import ObservationError, UsageError
from trainpilot.hardware import sample_load
from trainpilot.hardware.load import CpuTimes, read_cpu_times, sample_utilization


def _sample(readings: Iterable[CpuTimes], cpus: Iterable[int]) -> float:
    following = iter(readings)
    return sample_utilization(lambda: next(following), lambda seconds: None, 0.1, cpus)


def test_share_between_two_readings_of_the_usable_cores_only() -> None:
    first = {0: (100.0, 200.0), 1: (50.0, 200.0), 2: (0.0, 200.0)}
    last = {0: (100.5, 201.0), 1: (51.0, 201.0), 2: (0.0, 201.0)}
    assert _sample([first, last], {0, 1}) == pytest.approx(0.75)
    assert _sample([first, last], {2}) == 0.0
    assert _sample([first, last], {0, 1, 2}) == pytest.approx(0.5)


def test_cpus_that_the_readings_do_not_name() -> None:
    assert _sample([{0: (0.0, 1.0)}, {0: (1.0, 2.0)}], {7}) == 1.0


def test_a_cpu_that_goes_offline_is_left_out() -> None:
    first = {0: (0.0, 1.0), 1: (0.0, 1.0)}
    assert _sample([first, {0: (0.25, 2.0)}], {0, 1}) == 0.25


def test_waits_until_the_counters_move() -> None:
    still = {0: (5.0, 10.0)}
    assert _sample([still, still, still, {0: (5.5, 11.0)}], {0}) == 0.5


def test_counters_that_never_move_are_an_error_not_zero() -> None:
    with pytest.raises(ObservationError, match="did not change"):
        _sample([{0: (5.0, 10.0)}] * 100, {0})


@pytest.mark.parametrize("interval", [0.0, -1.0, 0.001, math.nan])
def test_too_short_an_interval(interval: float) -> None:
    with pytest.raises(UsageError, match="interval_s"):
        sample_load(interval)


def test_a_spinning_thread_is_seen_at_the_first_call() -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        load = sample_load(0.3)
    finally:
        stop.set()
        thread.join()
    assert 0.0 < load.cpu_utilization <= 1.0
    assert load.interval_s >= 0.3
    assert load.memory_available_bytes > 0
    assert load.load_average_1min is None or load.load_average_1min >= 0.0


def test_readings_of_this_system() -> None:
    readings = read_cpu_times()
    assert readings
    assert all(0.0 <= busy <= total for busy, total in readings.values())


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 10)), min_size=1, max_size=8))
def test_share_is_between_zero_and_one(changes: list[tuple[float, float]]) -> None:
    first = dict.fromkeys(range(len(changes)), (1.0, 2.0))
    last = {cpu: (1.0 + min(b, t), 2.0 + t) for cpu, (b, t) in enumerate(changes)}
    assert 0.0 <= _sample([first, last], range(len(changes))) <= 1.0
