"""Knowing when something else used the machine while steps were timed."""

from __future__ import annotations

from dataclasses import dataclass

from trainpilot.hardware.others import MOST_OTHERS_SHARE

SPARE_CORES = 0.2
# One neighbour on the same core takes turns with us every few milliseconds; an idle machine interrupts a few times.
MOST_SWITCHES_PER_S = 50.0
# A step on the CPU keeps at least one core busy all the time, unless somebody else is on it.
LEAST_CPU_SHARE = 0.9
# Up to here the control workload of the round itself divides the difference out.
MOST_CONTROL_RATIO = 2.5


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
