"""Measuring one configuration in this process. Runs inside a worker."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import psutil

from trainpilot import zoo
from trainpilot.benchmarking.configuration import Configuration
from trainpilot.benchmarking.contention import Interference, contention
from trainpilot.benchmarking.control import control_workload, measure_control
from trainpilot.benchmarking.energy import EnergyMeter, NoMeter, ZeusMeter
from trainpilot.benchmarking.failures import failure_of
from trainpilot.benchmarking.global_settings import changed_settings, global_settings
from trainpilot.benchmarking.operator_times import MOST_TIMED_STEP_S, time_operators
from trainpilot.benchmarking.rates import estimate_step_s, peak_flops_per_s
from trainpilot.benchmarking.timing import StepTiming, TimingLimits, measure_steps
from trainpilot.errors import MeasurementError
from trainpilot.hardware.others import OthersMeter
from trainpilot.workload.reference import is_code_reference

if TYPE_CHECKING:
    from trainpilot.backends import TrainingSession
    from trainpilot.workload import Workload

Clock = Callable[[], float]
# What a row holds of the trace of its step, which does not depend on when and where the step runs: it may be made
# ahead, and later rounds of a configuration take it over.
TRACE_FIELDS = ("workload_hash", "model_hash", "input_signature", "features", "op_groups")


def start() -> None:
    """Get everything out of the way that only the first configuration of a process would pay.

    A tiny model is profiled and trained, so that all libraries are imported and threads started. What is in memory
    then is taken out of garbage collection, which otherwise walks a million objects before each configuration.
    """
    from trainpilot.backends import get_backend
    from trainpilot.profiling import profile
    from trainpilot.workload import Workload

    workload = Workload(model="mlp", settings={"features": 8, "width": 8, "layers": 2}, batch_size=2)
    profile(workload)
    with get_backend("cpu").prepare(workload) as session:
        session.step()
    _let_go()


def control() -> float | None:
    """Time of the control workload in s."""
    return measure_control()


def trace(configurations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """Trace steps without measuring them.

    Args:
        configurations: ``Configuration.to_dict`` of each; none of them may be somebody's code.

    Returns:
        ``TRACE_FIELDS`` of each, or None where it cannot be traced: why it cannot is said where it is measured.
    """
    found: list[dict[str, Any] | None] = []
    for content in configurations:
        try:
            found.append(_trace(Configuration.from_dict(content).live_workload))
        except Exception:  # noqa: BLE001 - measuring it meets the same error, and makes a row of it
            found.append(None)
        _let_go()
    return found


def execute(task: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a configuration; whatever it raises becomes a status and a reason.

    Args:
        task: ``configuration`` (``Configuration.to_dict``), ``timing`` (fields of ``TimingLimits``), ``statistic``,
            ``cap_s``, ``operator_steps``, ``calibration`` (figures or {}), ``cores``, ``control_ratio`` (or None),
            ``trace`` (``TRACE_FIELDS`` if they are known already, or None).

    Returns:
        ``status``, ``reason``; ``labels`` (fields of ``Measurement``), ``operators``, ``contended`` (why, or ""),
        ``skipped`` (why, or ""), ``stepping_s``, and ``changed``: global settings that differ from before, or why
        this process should not go on after somebody's code.
    """
    before = global_settings()
    reply: dict[str, Any] = {
        "status": "failed",
        "reason": "",
        "labels": {},
        "operators": [],
        "contended": "",
        "skipped": "",
        "stepping_s": 0.0,
    }
    try:
        _measure(task, reply)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - anything that a model raises is a row, not our end
        reply["status"], reply["reason"] = failure_of(error)
    # Only the text of the error is kept: its frames would keep the model and its tensors alive.
    _let_go()
    reply["changed"] = changed_settings(before)
    if is_code_reference(task["configuration"]["workload"]["model"]):
        reply["changed"] += _left_by_code(reply["status"])
    return reply


def _left_by_code(status: str) -> list[str]:
    """What somebody's code may have left in this process that would disturb the next configuration."""
    found = ["child processes"] if psutil.Process().children() else []
    # Whatever else it did, e.g. to the clock, shows in its own row.
    return found if status == "ok" else [*found, f"status {status}"]


def _let_go() -> None:
    """Collect garbage; what is alive after that are caches of libraries, which the next collection need not walk."""
    gc.collect()
    gc.freeze()


def _trace(workload: Workload) -> dict[str, Any]:
    from trainpilot.profiling import profile

    traced = profile(workload)
    return {
        "workload_hash": traced.workload_hash,
        "model_hash": traced.model_hash,
        "input_signature": [list(part) for part in traced.input_signature],
        "features": dict(traced.features),
        "op_groups": [asdict(group) for group in traced.op_groups],
    }


def _measure(task: Mapping[str, Any], reply: dict[str, Any]) -> None:
    from trainpilot.backends import get_backend
    from trainpilot.backends.simulated import VirtualClock

    configuration = Configuration.from_dict(task["configuration"])
    labels = reply["labels"]
    others = OthersMeter()
    backend = get_backend(configuration.backend)
    labels["simulated"] = backend.simulated
    clock: Clock = VirtualClock() if backend.simulated else time.perf_counter
    workload = configuration.live_workload
    known = task["trace"] or _trace(workload)
    labels |= known
    estimate = estimate_step_s(known["features"], configuration.threads, task["calibration"])
    if estimate > task["cap_s"]:
        reply["skipped"] = f"a step would take about {estimate:.1f} s, the sweep's cap is {task['cap_s']:g} s"
        return
    begin = clock()
    session = backend.prepare(workload, configuration.settings, clock=clock)
    with session:
        session.synchronize()
        labels["setup_time_s"] = clock() - begin
        timing, loss_finite = _time_steps(session, configuration, clock, task, known["features"])
        used_threads = _threads_in_use()
        labels["peak_memory_bytes"] = session.peak_memory_bytes()
        labels["actual_placement"] = session.placement()
        labels["loss_finite"] = loss_finite
        labels["data_time_s"] = None if backend.simulated else _time_of_batch(configuration)
        reply["stepping_s"] = timing.stepping_s
        reply["status"], reply["reason"] = _status(configuration, timing, loss_finite, used_threads, backend.simulated)
        busy = others.cores()
        labels["cpu_utilization"] = None if busy is None else min(1.0, busy / task["cores"])
        if reply["status"] != "ok":
            return
        labels |= _timing_labels(timing)
        reply["contended"] = contention(
            Interference(
                wall_s=timing.wall_s,
                cpu_s=timing.cpu_s,
                switches=timing.involuntary_switches,
                others_cores=busy,
                control_ratio=task["control_ratio"],
            ),
            threads=configuration.threads,
            cores=task["cores"],
            on_cpu=configuration.backend == "cpu",
        )
        if backend.simulated:  # nothing real ran, so nothing could disturb it
            reply["contended"] = ""
        elif configuration.backend == "cpu" and configuration.phase == "train_step" and task["operator_steps"]:
            assert timing.step_time_s is not None
            if timing.step_time_s <= MOST_TIMED_STEP_S:
                begin = time.perf_counter()
                found = time_operators(session, known["op_groups"], task["operator_steps"], timing.step_time_s)
                reply["operators"] = [asdict(operator) for operator in found]
                reply["stepping_s"] += time.perf_counter() - begin


def _time_steps(
    session: TrainingSession,
    configuration: Configuration,
    clock: Clock,
    task: Mapping[str, Any],
    features: Mapping[str, float],
) -> tuple[StepTiming, bool | None]:
    last: Any = None

    def train_step() -> None:
        nonlocal last
        last = session.step()

    def forward() -> None:
        session.forward()

    phases = ("forward", "backward", "optimizer") if configuration.phase == "train_step" else ("forward",)
    flops = sum(features[f"flops.{phase}"] for phase in phases)
    timing = measure_steps(
        train_step if configuration.phase == "train_step" else forward,
        session.synchronize,
        clock=clock,
        limits=TimingLimits(**task["timing"]),
        statistic=task["statistic"],
        tick_s=None if clock is time.perf_counter else 0.0,  # a virtual clock does not tick by itself
        meter=_meter(configuration.backend),
        flops=flops,
        peak_flops_per_s=peak_flops_per_s(
            configuration.backend, configuration.threads, configuration.workload["dtype"], task["calibration"]
        ),
        control=control_workload(configuration.threads) if configuration.backend == "cpu" else None,
    )
    return timing, None if last is None else math.isfinite(float(last))


def _status(
    configuration: Configuration, timing: StepTiming, loss_finite: bool | None, threads: int, simulated: bool
) -> tuple[str, str]:
    if timing.invalid:
        return "invalid", timing.invalid
    if configuration.backend == "cpu" and not simulated and threads != configuration.threads:
        return "invalid", f"the model changed the number of threads from {configuration.threads} to {threads}"
    if loss_finite is False:
        return "nonfinite_loss", f"the loss was not finite after {timing.steps} timed steps"
    return "ok", ""


def _timing_labels(timing: StepTiming) -> dict[str, Any]:
    return {
        "step_time_s": timing.step_time_s,
        "step_quantiles_s": dict(timing.quantiles_s),
        "steps": timing.steps,
        "outliers": timing.outliers,
        "first_step_s": timing.first_step_s,
        "cpu_time_s": timing.cpu_s / timing.steps,
        "involuntary_switches": timing.involuntary_switches,
        "energy_j": timing.energy_j,
        "control_time_s": timing.control_time_s,
        "noisy": timing.noisy,
    }


def _threads_in_use() -> int:
    import torch

    return torch.get_num_threads()


def _time_of_batch(configuration: Configuration) -> float | None:
    """Time to make one batch of a zoo model in s; None for other models, whose data comes from elsewhere."""
    if configuration.uses_code:
        return None
    workload = configuration.workload
    entry = zoo.get(workload["model"])
    begin = time.perf_counter()
    entry.example_inputs(workload["settings"], workload["batch_size"])
    entry.example_targets(workload["settings"], workload["batch_size"])
    return time.perf_counter() - begin


def _meter(backend: str) -> EnergyMeter:
    """A meter where one can be read; the CPU's counters are too coarse and too privileged to be the default."""
    if backend != "cuda":
        return NoMeter()
    try:
        return ZeusMeter()
    except MeasurementError:
        return NoMeter()
