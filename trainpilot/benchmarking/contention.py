"""Knowing when something else used the machine while steps were timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainpilot.hardware.cores import allowed_cpus
from trainpilot.hardware.load import CpuTimes, read_cpu_times

# A spinning neighbour on one of two cores shows as 1.0 busy core, an idle machine as less than 0.05 of all cores.
MOST_OTHERS_SHARE = 0.1
SPARE_CORES = 0.2
# One neighbour on the same core takes turns with us every few milliseconds; an idle machine interrupts a few times.
MOST_SWITCHES_PER_S = 50.0
# A step on the CPU keeps at least one core busy all the time, unless somebody else is on it.
LEAST_CPU_SHARE = 0.9
MOST_CONTROL_RATIO = 1.3
# The kernel counts processor time in ticks of 10 ms, so that a shorter interval says nothing.
SHORTEST_INTERVAL_S = 0.05


@dataclass(frozen=True)
class Interference:
    """Signs of something else on the machine during the timed steps.

    Attributes:
        wall_s: Length of the timed part.
        cpu_s: CPU time of this process in it.
        switches: Involuntary context switches in it, or None.
        others_cores: Cores kept busy by something else, or None if the interval was too short to tell.
        control_ratio: Last control workload against the fastest of this sweep, or None.
    """

    wall_s: float
    cpu_s: float
    switches: int | None = None
    others_cores: float | None = None
    control_ratio: float | None = None


def contention(signs: Interference, *, threads: int, cores: int, on_cpu: bool) -> str:
    """Say why a round was taken under contention; empty if it was not.

    Args:
        signs: What was seen.
        threads: CPU threads in use.
        cores: Cores that this process may use.
        on_cpu: Whether the steps ran on the CPU, so that they keep a core busy.
    """
    if signs.others_cores is not None:
        busy = f"something else kept {signs.others_cores:.1f} of {cores} cores busy"
        if signs.others_cores > MOST_OTHERS_SHARE * cores:
            return busy
        if on_cpu and threads + signs.others_cores > cores + SPARE_CORES:
            return f"{busy} beside {threads} threads"
    if on_cpu and signs.wall_s > 0:
        if signs.cpu_s < LEAST_CPU_SHARE * signs.wall_s:
            return f"the steps had a core for {signs.cpu_s / signs.wall_s:.0%} of the time"
        # A few interruptions in a short window are no rate.
        if signs.switches is not None and signs.switches > max(5.0, MOST_SWITCHES_PER_S * signs.wall_s):
            return f"{signs.switches / signs.wall_s:.0f} involuntary context switches a second"
    if signs.control_ratio is not None and signs.control_ratio > MOST_CONTROL_RATIO:
        return f"the control workload took {signs.control_ratio:.2f} times as long as at best"
    return ""


class OthersMeter:
    """Measures how many cores something else keeps busy, over any interval.

    Args:
        read: Reads busy and total time of each CPU.
        own: CPU time of this process in s.
        clock: Clock in s.
        cpus: CPUs to look at; default: those this process may use.
    """

    def __init__(
        self,
        read: Callable[[], CpuTimes] = read_cpu_times,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
        cpus: Iterable[int] | None = None,
    ) -> None:
        self._read = read
        self._own = own
        self._clock = clock
        self._cpus = frozenset(allowed_cpus() if cpus is None else cpus)
        self.restart()

    def restart(self) -> None:
        """Begin a new interval."""
        self._first = self._read()
        self._first_own = self._own()
        self._begin = self._clock()

    def cores(self) -> float | None:
        """Cores that others kept busy since the start of the interval, or None if it was too short to tell."""
        elapsed = self._clock() - self._begin
        if elapsed < SHORTEST_INTERVAL_S:
            return None
        last = self._read()
        common = set(self._first) & set(last)
        common = common & self._cpus or common
        busy = sum(last[cpu][0] - self._first[cpu][0] for cpu in common)
        own = self._own() - self._first_own
        return max(0.0, busy - own) / elapsed
