"""How busy the machine is: two readings of the processor times, an interval apart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping

import psutil

from trainpilot.errors import ObservationError, UsageError
from trainpilot.hardware.cores import allowed_cpus
from trainpilot.hardware.memory import memory_available_bytes
from trainpilot.hardware.types import Load

# The kernel counts processor time in ticks of 10 ms, so a shorter interval says nothing.
_SHORTEST_INTERVAL_S = 0.02
_LONGEST_WAIT = 20  # intervals to wait for the counters to move

# (busy, total) in s of each logical CPU since the machine started
CpuTimes = Mapping[int, tuple[float, float]]


def sample_load(interval_s: float = 0.2) -> Load:
    """Sample how busy the usable cores are; takes ``interval_s`` seconds.

    Time stolen by other virtual machines counts as busy, waiting for a disk as idle. The process's own work counts.

    Args:
        interval_s: Length of the interval in s, at least 0.02.

    Raises:
        UsageError: The interval is too short for the system's clock.
        ObservationError: The system's counters stand still.
    """
    if not interval_s >= _SHORTEST_INTERVAL_S:
        raise UsageError(f"interval_s must be at least {_SHORTEST_INTERVAL_S}, got {interval_s}")
    begin = time.perf_counter()
    utilization = sample_utilization(read_cpu_times, time.sleep, interval_s, allowed_cpus())
    return Load(
        cpu_utilization=utilization,
        load_average_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        memory_available_bytes=memory_available_bytes(),
        interval_s=time.perf_counter() - begin,
    )


def sample_utilization(
    read: Callable[[], CpuTimes], wait: Callable[[float], None], interval_s: float, cpus: Iterable[int]
) -> float:
    """Busy share (0 to 1) of ``cpus`` between two readings.

    Args:
        read: Reads the counters of all CPUs.
        wait: Waits for a number of seconds.
        interval_s: Time between the readings in s.
        cpus: Numbers of the CPUs to look at; all if none of them is in the readings.

    Raises:
        ObservationError: The counters stand still.
    """
    first = read()
    chosen = set(cpus) & set(first) or set(first)
    for _ in range(_LONGEST_WAIT):
        wait(interval_s)
        last = read()
        common = chosen & set(last)  # a CPU may go offline in between
        busy = sum(last[cpu][0] - first[cpu][0] for cpu in common)
        total = sum(last[cpu][1] - first[cpu][1] for cpu in common)
        if total > 0:
            return min(1.0, max(0.0, busy / total))
    raise ObservationError(f"the processor times did not change within {_LONGEST_WAIT * interval_s:.1f} s")


def read_cpu_times() -> CpuTimes:
    """Busy and total time of each logical CPU since the start of the machine, in s."""
    readings = {}
    for cpu, times in enumerate(psutil.cpu_times(percpu=True)):
        # Guest time is part of user time already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        readings[cpu] = (total - times.idle - getattr(times, "iowait", 0.0), total)
    return readings
