"""Putting a row together: the configuration, what the worker found, and where it ran."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trainpilot.benchmarking.configuration import Configuration, OperatorTiming
from trainpilot.benchmarking.measurement import Measurement, Status
from trainpilot.hardware import Machine, cached_calibration, machine, usable_cores, versions

if TYPE_CHECKING:
    from trainpilot.backends import ExecutionSettings
    from trainpilot.profiling import WorkloadProfile
    from trainpilot.workload import Workload

CalibrationLookup = Callable[[str, int, str], Mapping[str, float]]


@dataclass(frozen=True)
class Site:
    """Where a sweep runs.

    Attributes:
        machine: The machine.
        versions: Versions of the libraries that decide speed.
        cores: Usable cores.
        calibration: Gives the cached figures for (backend, threads, dtype); {} where there are none.
    """

    machine: Machine
    versions: Mapping[str, str]
    cores: int
    calibration: CalibrationLookup


def this_site() -> Site:
    """The machine that this process runs on. Nothing is probed; calibration figures are those in the cache."""
    found: dict[tuple[str, int, str], Mapping[str, float]] = {}

    def calibration(backend: str, threads: int, dtype: str) -> Mapping[str, float]:
        key = (backend, threads, dtype)
        if key not in found:
            cached = cached_calibration(*key)
            found[key] = {} if cached is None else dict(cached.figures)
        return found[key]

    return Site(machine=machine(), versions=versions(), cores=usable_cores(), calibration=calibration)


def build_row(
    configuration: Configuration,
    site: Site,
    *,
    key: str,
    repetition: int,
    sweep_id: str,
    status: Status,
    reason: str,
    labels: Mapping[str, Any],
    contended: bool = False,
    control_time_s: float | None = None,
) -> Measurement:
    """One row of the dataset.

    Args:
        configuration: What was measured.
        site: Where.
        key: The configuration's key.
        repetition: Number of the round, from 0.
        sweep_id: The sweep.
        status: What happened.
        reason: Why the status is not ``ok``.
        labels: Fields of the row that the worker found; {} if it was lost before it answered.
        contended: Something else used the machine.
        control_time_s: Last control workload in s, where the round has none of its own.
    """
    workload = configuration.workload
    fields: dict[str, Any] = {
        "workload_hash": configuration.workload_identity,
        "model_hash": "" if configuration.uses_code else configuration.live_workload.model_hash,
        "input_signature": [],
        "features": {},
        "op_groups": [],
        "actual_placement": None,
        "simulated": configuration.backend == "simulated",
        "cpu_utilization": None,
    }
    fields |= labels
    if fields.get("control_time_s") is None:
        fields["control_time_s"] = control_time_s
    if status != "ok":  # a time of something that failed is no time
        fields = {name: value for name, value in fields.items() if name not in _TIMES}
    return Measurement(
        row_id=uuid.uuid4().hex,
        config_key=key,
        repetition=repetition,
        sweep_id=sweep_id,
        origin="benchmark",
        created_at=time.time(),
        name=workload["label"] or workload["model"],
        family=configuration.family,
        model_settings=dict(workload["settings"]),
        batch_size=workload["batch_size"],
        optimizer=workload["optimizer"],
        dtype=workload["dtype"],
        backend=configuration.backend,
        requested_placement=configuration.backend,
        threads=configuration.threads,
        memory_format=configuration.memory_format,
        machine_id=site.machine.machine_id,
        machine=asdict(site.machine),
        calibration=dict(site.calibration(configuration.backend, configuration.threads, workload["dtype"])),
        versions=dict(site.versions),
        load_average_1min=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        phase=configuration.phase,
        status=status,
        reason=reason,
        contended=contended,
        **fields,
    )


def run_fields(
    workload: Workload,
    profile: WorkloadProfile,
    *,
    backend: str,
    settings: ExecutionSettings,
    threads: int,
    simulated: bool,
    calibration: Mapping[str, float],
) -> dict[str, Any]:
    """What a row says of steps that ran in this process: the workload, its profile, and where it ran.

    Args:
        workload: What ran; a live model too, which no configuration can name.
        profile: Its profile.
        backend: Where it ran.
        settings: How.
        threads: CPU threads in use.
        simulated: Whether the backend is a simulated one.
        calibration: Calibration figures; {} where none are cached.

    Returns:
        Fields of ``Measurement``; what was measured and the identity of the row are missing.
    """
    here = machine()
    return {
        "workload_hash": workload.workload_hash,
        "model_hash": workload.model_hash,
        "name": workload.name,
        "family": workload.family,
        "model_settings": dict(workload.settings),
        "batch_size": profile.batch_size,
        "optimizer": workload.optimizer_name,
        "dtype": settings.dtype,
        "input_signature": list(profile.input_signature),
        "features": dict(profile.features),
        "op_groups": [asdict(group) for group in profile.op_groups],
        "backend": backend,
        "requested_placement": backend,
        "threads": threads,
        "memory_format": settings.memory_format,
        "simulated": simulated,
        "machine_id": here.machine_id,
        "machine": asdict(here),
        "calibration": dict(calibration),
        "versions": versions(),
        "phase": "train_step",
    }


def operator_timings(found: list[Mapping[str, Any]]) -> list[OperatorTiming]:
    """Operator timings as the worker sent them."""
    return [OperatorTiming(**content) for content in found]


_TIMES = frozenset(
    (
        "step_time_s",
        "step_quantiles_s",
        "steps",
        "outliers",
        "first_step_s",
        "setup_time_s",
        "data_time_s",
        "cpu_time_s",
        "energy_j",
        "peak_memory_bytes",
    )
)
