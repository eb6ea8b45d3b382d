"""The timing protocol: how the time of one step is taken, whatever runs the step.

The first step is a label of its own. Warm-up follows until two blocks of steps agree. Then the steps are timed in
windows, each long enough for the clock, with the device synchronised before every reading. Nothing is averaged
away: quantiles of the windows stay, and a spread, a clock or a rate that cannot be trusted is said.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from trainpilot.benchmarking.energy import EnergyMeter, NoMeter
from trainpilot.errors import UsageError

try:
    import resource
except ImportError:  # Windows has no such counters
    resource = None  # type: ignore[assignment]

Clock = Callable[[], float]

TICKS_PER_WINDOW = 100
STABLE_WITHIN = 0.1  # two blocks of warm-up steps agree when they differ by less than this share
NOISY_P95 = 3.0  # a round is noisy when the 95th percentile of its windows is this many medians
NOISY_IQR = 0.15  # ... or when the middle half of its windows spreads over this share of the median
_MOST_TICK_READS = 2_000
_MOST_GROWTH = 10  # windows grow by at most this factor at once, so that one odd reading costs little
_MOST_WARMUP_BLOCKS = 50
_MOST_STEPS = 1_000_000  # in one window; what is still shorter than the clock can tell is not worth knowing

QUANTILES: Mapping[str, float] = {
    "min": 0.0,
    "p10": 0.1,
    "p25": 0.25,
    "median": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "max": 1.0,
}


@dataclass(frozen=True)
class TimingLimits:
    """How long one round may take.

    Attributes:
        target_s: Time to spend in timed windows.
        warmup_s: Time to spend in warm-up; one block always runs.
        max_s: No window is started after this time, first step and warm-up included.
        min_window_s: Shortest window, so that reading the clock and synchronising cost nothing beside it.
        min_windows: Fewest windows, unless ``max_s`` is reached.
        max_windows: Most windows.

    Raises:
        UsageError: A limit is not positive, or the fewest windows are more than the most.
    """

    target_s: float = 0.3
    warmup_s: float = 0.2
    max_s: float = 5.0
    min_window_s: float = 0.005
    min_windows: int = 5
    max_windows: int = 200

    def __post_init__(self) -> None:
        for name in ("target_s", "max_s", "min_window_s", "min_windows", "max_windows"):
            if not getattr(self, name) > 0:
                raise UsageError(f"timing: {name} must be positive, got {getattr(self, name)}")
        if self.warmup_s < 0:
            raise UsageError(f"timing: warmup_s must not be negative, got {self.warmup_s}")
        if self.min_windows > self.max_windows:
            raise UsageError(f"timing: min_windows {self.min_windows} is more than max_windows {self.max_windows}")


@dataclass(frozen=True)
class StepTiming:
    """What one round of timing found. Times in s.

    Attributes:
        invalid: Why the round gives no label, in words; empty if it does.
        first_step_s: Time of the first step, or None if the clock failed.
        step_time_s: The label, or None if the round is invalid.
        quantiles_s: Quantiles of the windows' step times by name.
        steps: Timed steps.
        windows: Timed windows.
        outliers: Windows beyond 1.5 interquartile ranges.
        noisy: The spread, with what the control workload tells divided out, is too large for a trusted label, or the
            windows are too short for the clock.
        coarse: The windows are shorter than 100 ticks of the clock.
        wall_s: Time of all windows together.
        cpu_s: CPU time of this process during the windows.
        involuntary_switches: Involuntary context switches during the windows, or None.
        energy_j: Energy per step, or None without a meter.
        stepping_s: Time in the first step, warm-up and windows.
        control_time_s: Median over the windows of the control workload's time around them, or None without one.
    """

    invalid: str = ""
    first_step_s: float | None = None
    step_time_s: float | None = None
    quantiles_s: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    windows: int = 0
    outliers: int = 0
    noisy: bool = False
    coarse: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    involuntary_switches: int | None = None
    energy_j: float | None = None
    stepping_s: float = 0.0
    control_time_s: float | None = None


class _ClockFailedError(Exception):
    """The clock went backwards or stood still; becomes ``StepTiming.invalid``."""


def measure_steps(
    step: Callable[[], Any],
    synchronize: Callable[[], None],
    *,
    clock: Clock = time.perf_counter,
    limits: TimingLimits | None = None,
    statistic: str = "median",
    tick_s: float | None = None,
    cpu_clock: Clock = time.process_time,
    meter: EnergyMeter | None = None,
    flops: float | None = None,
    peak_flops_per_s: float | None = None,
    control: Callable[[], float] | None = None,
) -> StepTiming:
    """Time one step.

    Garbage collection is off while steps run, and as before afterwards, also when a step raises.

    Args:
        step: Runs one step; may return before the work is done.
        synchronize: Waits until all work is done.
        clock: Clock in s.
        limits: How long it may take.
        statistic: Which statistic of the windows is the label (see ``label_of``).
        tick_s: Smallest difference that the clock shows, in s; default: found by reading it.
        cpu_clock: CPU time of this process in s.
        meter: Energy meter; default: none, so the energy is unknown.
        flops: Floating-point operations of one step, to check the result against ``peak_flops_per_s``.
        peak_flops_per_s: What the device cannot exceed.
        control: Runs the control workload and returns its time in s. It runs between the windows, and the label is
            then the statistic of the windows divided by their own control times, times the median of these: what
            slows down both for a moment is divided out. The spread that makes a round noisy is that of the divided
            windows, too; the quantiles and outliers are those of the windows as they were.

    Returns:
        The timing; ``invalid`` says why there is no label where there is none.
    """
    limits = limits or TimingLimits()
    meter = meter or NoMeter()
    run = _Run(step, synchronize, clock)
    first: float | None = None
    with _garbage_collection_paused():
        try:
            tick = clock_tick(clock) if tick_s is None else tick_s
            needed = max(TICKS_PER_WINDOW * tick, limits.min_window_s)
            first = run.block(1)
            count = _warm_up(run, needed, limits)
            switches, cpu = _involuntary_switches(), cpu_clock()
            meter.begin()
            lengths, controls = _windows(run, count, limits, control)
            energy = meter.end()
            cpu, now = cpu_clock() - cpu, _involuntary_switches()
        except _ClockFailedError as error:
            invalid = str(error)
            return StepTiming(invalid=invalid, first_step_s=first or None, stepping_s=run.total_s)
    times = [length / count for length in lengths]
    steps = count * len(times)
    # Of the control runs before and after a window the mean counts. Their typical time is the median of these means,
    # not of the runs: a few slow ones raise most means, and the label would be below all windows.
    around = [(before + after) / 2 for before, after in itertools.pairwise(controls)]
    typical = quantile(around, 0.5) if around else None
    steadied = times if typical is None else _controlled(times, around, typical)
    label = label_of(steadied, statistic)
    coarse = quantile(lengths, 0.5) < TICKS_PER_WINDOW * tick * (1 - 1e-9)
    invalid = _rate_problem(label, flops, peak_flops_per_s)
    return StepTiming(
        invalid=invalid,
        first_step_s=first or None,  # 0 means shorter than the clock can tell
        step_time_s=None if invalid else label,
        quantiles_s={name: quantile(times, q) for name, q in QUANTILES.items()},
        steps=steps,
        windows=len(times),
        outliers=count_outliers(times),
        noisy=coarse or _spread_too_far(steadied),
        coarse=coarse,
        wall_s=sum(lengths),
        cpu_s=cpu,
        involuntary_switches=None if now is None or switches is None else now - switches,
        energy_j=None if energy is None else energy / steps,
        stepping_s=run.total_s,
        control_time_s=typical,
    )


def _controlled(times: Sequence[float], around: Sequence[float], typical: float) -> list[float]:
    """Each window as it would have been under typical conditions, by the control time around it."""
    return [time * typical / control for time, control in zip(times, around, strict=True)]


def _spread_too_far(times: Sequence[float]) -> bool:
    middle, low, high, most = (quantile(times, share) for share in (0.5, 0.25, 0.75, 0.95))
    return most > NOISY_P95 * middle or high - low > NOISY_IQR * middle


def label_of(windows: Sequence[float], statistic: str = "median") -> float:
    """Reduce the step times of one round's windows to the label.

    The median is the default: it is the one statistic that re-measures well on one thread and on several. Minima
    are slightly better on one quiet thread, but on several threads they are bimodal from round to round.

    Args:
        windows: Step time of each window in s.
        statistic: A name of ``QUANTILES``.

    Raises:
        UsageError: There is no such statistic.
    """
    if statistic not in QUANTILES:
        raise UsageError(f"statistic {statistic!r}: valid are {', '.join(QUANTILES)}")
    return quantile(windows, QUANTILES[statistic])


def quantile(values: Sequence[float], share: float) -> float:
    """Quantile with linear interpolation between the order statistics; ``values`` must not be empty."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:  # exact, where interpolation would round
        return ordered[below]
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def count_outliers(values: Sequence[float]) -> int:
    """Number of values beyond 1.5 interquartile ranges from the quartiles."""
    low, high = quantile(values, 0.25), quantile(values, 0.75)
    # Rounding must not make outliers where the middle half is constant.
    reach = 1.5 * max(high - low, 1e-9 * abs(high))
    return sum(value < low - reach or value > high + reach for value in values)


def clock_tick(clock: Clock) -> float:
    """Smallest difference in s that a clock shows between two readings, or 0.0 if it does not advance by itself."""
    smallest = math.inf
    last = clock()
    for _ in range(_MOST_TICK_READS):
        now = clock()
        if now > last:
            smallest = min(smallest, now - last)
        last = now
    if smallest < math.inf:
        return smallest
    # A clock that is coarser than all these readings together: wait for one tick of it, but not for ever.
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.05:
        now = clock()
        if now > last:
            return now - last
    return 0.0


class _Run:
    """Runs blocks of steps and keeps the time spent in them."""

    def __init__(self, step: Callable[[], Any], synchronize: Callable[[], None], clock: Clock) -> None:
        self._step = step
        self._synchronize = synchronize
        self._clock = clock
        self.total_s = 0.0

    def block(self, count: int) -> float:
        """Time of ``count`` steps in s."""
        step, clock = self._step, self._clock
        self._synchronize()
        begin = clock()
        for _ in range(count):
            step()
        self._synchronize()
        elapsed = clock() - begin
        if not elapsed >= 0:
            raise _ClockFailedError(f"the clock went backwards by {-elapsed:g} s during {count} steps")
        self.total_s += elapsed
        return elapsed


def _warm_up(run: _Run, needed_s: float, limits: TimingLimits) -> int:
    """Run steps until their time is stable; return how many of them fill a window."""
    # A coarse clock needs longer blocks, so the warm-up may take up to half of everything there.
    limit = run.total_s + max(limits.warmup_s, min(2 * needed_s, limits.max_s / 2))
    count, last, begin = 1, math.inf, time.perf_counter()
    for _ in range(_MOST_WARMUP_BLOCKS):
        elapsed = run.block(count)
        used, filled = count, elapsed >= needed_s
        if elapsed == 0 and (count >= _MOST_STEPS or time.perf_counter() - begin > limits.max_s):
            raise _ClockFailedError(f"the clock did not advance during {count} steps")
        if not filled:
            wanted = math.ceil(count * needed_s / elapsed * 1.05) if elapsed > 0 else count * _MOST_GROWTH
            count = max(count + 1, min(wanted, count * _MOST_GROWTH, _MOST_STEPS))
        stable = filled and abs(elapsed / used - last) < STABLE_WITHIN * last
        last = elapsed / used
        if stable or run.total_s >= limit or run.total_s >= limits.max_s:
            break
    if last > 0:  # a window that just fills; the time left may not suffice for the one that was tried last
        affordable = max(1, int((limits.max_s - run.total_s) / last))
        count = min(max(1, math.ceil(needed_s / last * 1.02 - 0.05)), max(affordable, used))
    return count


def _windows(
    run: _Run, count: int, limits: TimingLimits, control: Callable[[], float] | None
) -> tuple[list[float], list[float]]:
    """Times of the windows, and of the control runs before the first and after each of them."""
    lengths: list[float] = []
    controls = [] if control is None else [control()]
    total = 0.0
    while len(lengths) < limits.max_windows:
        if lengths and run.total_s >= limits.max_s:
            break
        if total >= limits.target_s and len(lengths) >= limits.min_windows:
            break
        elapsed = run.block(count)
        if elapsed == 0:
            raise _ClockFailedError(f"the clock did not advance during a window of {count} steps")
        lengths.append(elapsed)
        total += elapsed
        if control is not None:
            controls.append(control())
    return lengths, controls


def _rate_problem(step_time_s: float, flops: float | None, peak_flops_per_s: float | None) -> str:
    if not math.isfinite(step_time_s) or step_time_s <= 0:
        return f"a step time of {step_time_s} s cannot be right"
    if flops is None or peak_flops_per_s is None or flops / step_time_s <= peak_flops_per_s:
        return ""
    return (
        f"{flops / step_time_s:.3g} FLOP/s achieved, but the device cannot exceed {peak_flops_per_s:.3g}: "
        "the work was not done when the clock was read"
    )


def _involuntary_switches() -> int | None:
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        else:
            gc.disable()
