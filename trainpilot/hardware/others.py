"""How busy everything else keeps the machine while this process works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from trainpilot.hardware.cores import allowed_cpus
from trainpilot.hardware.load import CpuTimes, read_cpu_times

# The kernel counts processor time in ticks of 10 ms, so that a shorter interval says nothing.
SHORTEST_INTERVAL_S = 0.05
# A spinning neighbour on one of two cores shows as 1.0 busy core, an idle machine as less than 0.05 of all cores.
MOST_OTHERS_SHARE = 0.1


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
