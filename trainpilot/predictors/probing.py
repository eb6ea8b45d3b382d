"""Probing: a few real steps of a new workload, where the prediction alone says too little."""

from __future__ import annotations

import logging
import math
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainpilot.backends import get_backend
from trainpilot.benchmarking import Measurement, TimingLimits, measure_steps
from trainpilot.benchmarking.contention import Interference, contention
from trainpilot.benchmarking.rows import run_fields
from trainpilot.errors import MeasurementError
from trainpilot.hardware import usable_cores
from trainpilot.hardware.others import OthersMeter
from trainpilot.predictors.prediction import Estimate
from trainpilot.workload.identity import digest

if TYPE_CHECKING:
    from trainpilot.backends import ExecutionSettings
    from trainpilot.profiling import WorkloadProfile
    from trainpilot.workload import Workload

# An interval that is wider than this share of its value leaves a plan open by more than half.
WIDE_INTERVAL = 0.5
_LIMITS = TimingLimits(target_s=0.5, warmup_s=0.2, max_s=10.0, min_windows=3)
_MEMORY_SHARE = 0.9
# How far one window of the same step differs from another day's, as a standard deviation of log-time: measured here
# as 3 to 6% when nothing else runs, 9 to 16% beside something else (datasheet of the reference dataset).
_QUIET_SPREAD = 0.06
_CONTENDED_SPREAD = 0.16
# What a prediction without an interval is taken to be worth: right within a factor of 2, as in the selection.
_UNKNOWN_SPREAD = math.log(2.0)
_LEVEL = 0.9

_logger = logging.getLogger("trainpilot")


@dataclass(frozen=True)
class Probe:
    """What a few real steps told.

    Attributes:
        step_time_s: Median time of one step in s.
        spread: Standard deviation of its logarithm.
        steps: Steps that were run, warm-up and first step apart.
        setup_time_s: Building the model, and what the first step took longer than the others, in s.
        peak_memory_bytes: Peak memory that the steps added, or None.
        cost_s: What the probe cost, in s.
        contended: Why the machine was not quiet, or "".
    """

    step_time_s: float
    spread: float
    steps: int
    setup_time_s: float
    peak_memory_bytes: int | None
    cost_s: float
    contended: str

    @property
    def note(self) -> str:
        """What was done and what it cost, in words."""
        disturbed = f"; {self.contended}" if self.contended else ""
        return (
            f"probed: {self.steps} real steps took {self.step_time_s:.3g} s each, which cost {self.cost_s:.1f} s "
            f"in all{disturbed}"
        )


def why_probe(step: Estimate | None, in_range: bool) -> str:
    """Say why a probe would tell more than the prediction; empty if it would not."""
    if step is None:
        return "nothing is known"
    if not in_range:
        return "the workload is out of range"
    if step.low is None or step.high is None:
        return "the prediction has no interval"
    if step.high - step.low > WIDE_INTERVAL * step.value:
        return f"the interval is wide ({(step.high - step.low) / step.value:.0%} of the value)"
    return ""


def run_probe(workload: Workload, backend: str, settings: ExecutionSettings, profile: WorkloadProfile) -> Probe:
    """Run some steps of a workload on a copy of its model, and keep them as a row of the timing dataset.

    Args:
        workload: What to run.
        backend: Where.
        settings: How.
        profile: Its profile, which tells whether it fits.

    Raises:
        MeasurementError: It would not fit into memory, or no time could be taken.
        BackendUnusableError: The backend cannot be used.
        UnsupportedError: The backend lacks an operator, dtype or setting of the workload.
        ModelError: The model cannot be built or run.
        StoreError: The row could be kept nowhere.
    """
    device = get_backend(backend)
    available = device.info().memory_available_bytes
    if available is not None and profile.memory.peak_bytes > _MEMORY_SHARE * available:
        raise MeasurementError(
            f"the workload is not probed: its step needs about {profile.memory.peak_bytes / 2**30:.1f} GiB of the "
            f"{available / 2**30:.1f} GiB that are free"
        )
    begin = time.perf_counter()
    others = OthersMeter()
    with device.prepare(workload, settings) as session:
        session.synchronize()
        prepared_s = time.perf_counter() - begin
        timing = measure_steps(session.step, session.synchronize, limits=_LIMITS)
        peak, placement = session.peak_memory_bytes(), session.placement()
    if timing.step_time_s is None:
        raise MeasurementError(f"the probe gave no time: {timing.invalid}")
    threads = usable_cores() if settings.threads is None else settings.threads
    disturbed = contention(
        Interference(timing.wall_s, timing.cpu_s, timing.involuntary_switches, others.cores()),
        threads=threads,
        cores=usable_cores(),
        on_cpu=backend == "cpu",
    )
    middle = timing.quantiles_s["p75"] - timing.quantiles_s["p25"]
    # Half the middle half is 0.67 standard deviations of a normal distribution.
    own = middle / 2 / 0.6745 / timing.step_time_s
    probe = Probe(
        step_time_s=timing.step_time_s,
        spread=max(own, _CONTENDED_SPREAD if disturbed else _QUIET_SPREAD),
        steps=timing.steps,
        setup_time_s=prepared_s + max(0.0, (timing.first_step_s or 0.0) - timing.step_time_s),
        peak_memory_bytes=peak,
        cost_s=time.perf_counter() - begin,
        contended=disturbed,
    )
    calibration = device.calibration(settings, run=False)
    row_id = uuid.uuid4().hex
    labels: dict[str, Any] = run_fields(
        workload,
        profile,
        backend=backend,
        settings=settings,
        threads=threads,
        simulated=device.simulated,
        calibration={} if calibration is None else calibration.figures,
    )
    _keep(
        Measurement(
            row_id=row_id,
            config_key=digest(["probe", row_id]),
            repetition=0,
            sweep_id="probe",
            origin="training",
            created_at=time.time(),
            **labels,
            actual_placement=placement,
            load_average_1min=None,
            cpu_utilization=None,
            status="ok",
            step_time_s=timing.step_time_s,
            step_quantiles_s=dict(timing.quantiles_s),
            steps=timing.steps,
            outliers=timing.outliers,
            first_step_s=timing.first_step_s,
            setup_time_s=prepared_s,
            cpu_time_s=timing.cpu_s / timing.steps,
            involuntary_switches=timing.involuntary_switches,
            peak_memory_bytes=peak,
            contended=bool(disturbed),
            noisy=timing.noisy,
        )
    )
    return probe


def combine(predicted: Estimate | None, probe: Probe) -> Estimate:
    """Join a prediction and a probe: both are normal in log-time, so each counts by its precision.

    The result lies between the two, nearer to the one that is surer.

    Args:
        predicted: The predicted step time; without an interval it counts as right within a factor of 2.
        probe: The probe.
    """
    from scipy.stats import norm

    level = _LEVEL if predicted is None or predicted.level is None else predicted.level
    width = float(norm.ppf((1 + level) / 2))
    measured, weight = math.log(probe.step_time_s), probe.spread**-2
    center, total = measured * weight, weight
    if predicted is not None and predicted.value > 0:
        spread = _UNKNOWN_SPREAD
        if predicted.low is not None and predicted.high is not None and 0 < predicted.low < predicted.high:
            spread = math.log(predicted.high / predicted.low) / 2 / width
        center += math.log(predicted.value) * spread**-2
        total += spread**-2
    value, half = math.exp(center / total), math.exp(width * total**-0.5)
    return Estimate(value, value / half, value * half, level)


def _keep(row: Measurement) -> None:
    """Put the row of a probe into the dataset, or into a file where that cannot be written."""
    from trainpilot.store import keep_row

    kept = keep_row(row)
    if kept.problem is not None:
        _logger.warning("the probe could not be recorded in the timing dataset: %s", kept.note)
