"""One measured row of the timing dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "oom", "killed", "timeout", "unsupported", "nonfinite_loss", "invalid", "failed"]
STATUSES: tuple[str, ...] = (
    "ok",
    "oom",
    "killed",
    "timeout",
    "unsupported",
    "nonfinite_loss",
    "invalid",
    "failed",
)


@dataclass(frozen=True)
class Measurement:
    """One repetition of one configuration on one machine. Times in s, memory in bytes, energy in J.

    A label that could not be measured is None, never 0. Only rows with status ``ok`` are labels.

    Attributes:
        row_id: Unique id of the row (32 hexadecimal digits).
        config_key: Hash of workload, backend, execution settings, phase, machine and library versions: what a
            resumed sweep compares.
        repetition: 0 for the first round of a configuration, 1 for the second, ...
        sweep_id: The sweep that asked for the row; ``training`` for a real training run.
        origin: ``benchmark`` or ``training``.
        created_at: Seconds since the epoch.
        workload_hash: Identity of the training step.
        model_hash: Identity of the model.
        name: Name of the model.
        family: Zoo family, ``operator`` or ``custom``.
        model_settings: Settings of the model.
        batch_size: Samples per step.
        optimizer: Name of the optimizer.
        dtype: Compute type.
        input_signature: ``[[shape, dtype], ...]``.
        features: Numbers for the predictors (``WorkloadProfile.features``).
        op_groups: The table of operations of the step, as JSON.
        backend: The backend that was asked.
        requested_placement: Where the work should run.
        actual_placement: Where it really ran; None if unknown.
        threads: CPU threads in use.
        memory_format: ``contiguous`` or ``channels_last``.
        simulated: True for rows of the simulated backend; never mixed with real ones.
        machine_id: The machine.
        machine: Its description, as JSON.
        calibration: Calibration figures of the backend at these settings; empty if not probed.
        versions: Versions of the libraries that decide speed.
        load_average_1min: At the start of the row, or None.
        cpu_utilization: Of everything else on the machine at the start, 0 to 1, or None.
        phase: ``train_step`` or ``forward``.
        status: What happened.
        reason: Why the status is not ``ok``, in words.
        step_time_s: The label: time of one step, each window divided by the control runs beside it and multiplied by
            ``control_time_s``; the plain statistic of the windows where there is no such control.
        step_quantiles_s: Quantiles of the timed steps or windows as they were, by name (min, p10, p25, median, p75,
            p90, max).
        steps: Number of timed steps.
        outliers: Number of timed windows beyond 1.5 interquartile ranges.
        first_step_s: Time of the first step, setup apart.
        setup_time_s: Building the model and moving it to the device.
        data_time_s: Making or loading one batch, or None.
        cpu_time_s: CPU time of this process per timed step.
        involuntary_switches: Involuntary context switches during the timed steps, or None.
        peak_memory_bytes: Peak memory that the steps added, or None.
        energy_j: Energy per step, or None without a meter.
        loss_finite: Whether the loss of the last step was finite, or None.
        contended: Something else used the machine during the timed steps.
        control_time_s: Time of the control workload during this row (nearest to it, where it ran on another device),
            or None. ``step_time_s / control_time_s`` is what re-measures best.
        noisy: The spread of the windows is too large for a trusted label.
    """

    row_id: str
    config_key: str
    repetition: int
    sweep_id: str
    origin: str
    created_at: float
    workload_hash: str
    model_hash: str
    name: str
    family: str
    model_settings: Mapping[str, Any]
    batch_size: int
    optimizer: str
    dtype: str
    input_signature: list[Any]
    features: Mapping[str, float]
    op_groups: list[Mapping[str, Any]]
    backend: str
    requested_placement: str
    actual_placement: str | None
    threads: int
    memory_format: str
    simulated: bool
    machine_id: str
    machine: Mapping[str, Any]
    calibration: Mapping[str, float]
    versions: Mapping[str, str]
    load_average_1min: float | None
    cpu_utilization: float | None
    phase: str
    status: Status
    reason: str = ""
    step_time_s: float | None = None
    step_quantiles_s: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    outliers: int = 0
    first_step_s: float | None = None
    setup_time_s: float | None = None
    data_time_s: float | None = None
    cpu_time_s: float | None = None
    involuntary_switches: int | None = None
    peak_memory_bytes: int | None = None
    energy_j: float | None = None
    loss_finite: bool | None = None
    contended: bool = False
    control_time_s: float | None = None
    noisy: bool = False
