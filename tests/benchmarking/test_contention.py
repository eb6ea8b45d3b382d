import pytest

from tests.benchmarking.doubles import FakeClock
from trainpilot.benchmarking.contention import Interference, contention
from trainpilot.hardware.others import OthersMeter


def verdict(threads=1, cores=2, on_cpu=True, **signs):
    given = {"wall_s": 1.0, "cpu_s": 0.99, "switches": 3, "others_cores": 0.03, "control_ratio": 1.02}
    return contention(Interference(**given | signs), threads=threads, cores=cores, on_cpu=on_cpu)


def test_a_quiet_round_is_not_marked():
    assert verdict() == ""
    assert verdict(threads=2, cpu_s=1.9) == ""
    assert verdict(others_cores=None, switches=None, control_ratio=None) == ""


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        ({"others_cores": 1.0}, "something else kept 1.0 of 2 cores busy"),
        ({"cpu_s": 0.5}, "the steps had a core for 50% of the time"),
        ({"switches": 200}, "200 involuntary context switches a second"),
        ({"control_ratio": 3.0}, "the control workload took 3.00 times as long as at best"),
    ],
)
def test_each_sign_alone_is_enough(signs, reason):
    assert verdict(**signs) == reason


def test_a_small_neighbour_counts_when_all_cores_are_ours():
    assert verdict(threads=63, cores=64, cpu_s=50.0, others_cores=1.0) == ""
    assert verdict(threads=64, cores=64, cpu_s=50.0, others_cores=1.0) != ""


def test_steps_on_a_device_need_no_core():
    assert verdict(on_cpu=False, cpu_s=0.01, switches=500) == ""
    assert verdict(on_cpu=False, others_cores=1.0) != ""


def test_a_few_switches_in_a_short_window_are_no_rate():
    assert verdict(wall_s=0.05, cpu_s=0.05, switches=4) == ""


def meter_with(busy, own, seconds):
    clock = FakeClock()
    readings = iter([{0: (10.0, 100.0), 1: (20.0, 100.0)}, {0: (10.0 + busy[0], 0.0), 1: (20.0 + busy[1], 0.0)}])
    cpu = iter([5.0, 5.0 + own])
    meter = OthersMeter(read=lambda: next(readings), own=lambda: next(cpu), clock=clock, cpus=[0, 1])
    clock.advance(seconds)
    return meter.cores()


def test_others_are_what_the_cores_did_beyond_our_own_work():
    assert meter_with((2.0, 1.5), own=2.0, seconds=2.0) == pytest.approx(0.75)


def test_rounding_of_the_counters_gives_nothing_negative():
    assert meter_with((0.98, 0.0), own=1.0, seconds=1.0) == 0.0


def test_too_short_an_interval_says_nothing():
    assert meter_with((0.01, 0.0), own=0.0, seconds=0.01) is None


def test_other_cpus_than_ours_do_not_count():
    clock = FakeClock()
    readings = iter([{0: (0.0, 0.0), 1: (0.0, 0.0)}, {0: (0.1, 1.0), 1: (1.0, 1.0)}])
    meter = OthersMeter(read=lambda: next(readings), own=lambda: 0.0, clock=clock, cpus=[0])
    clock.advance(1.0)
    assert meter.cores() == pytest.approx(0.1)


def test_the_real_counters_can_be_read():
    assert OthersMeter().cores() is None or OthersMeter().cores() >= 0
