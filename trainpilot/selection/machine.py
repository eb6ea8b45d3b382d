"""Selection on this machine: probe, predict, adjust for the load, choose."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from trainpilot import predictors, rules
from trainpilot.backends import Backend, ExecutionSettings, candidate_backends, get_backend
from trainpilot.errors import (
    BackendUnusableError,
    MeasurementError,
    NoDataError,
    ObservationError,
    UnsupportedError,
    UsageError,
)
from trainpilot.hardware import usable_cores
from trainpilot.predictors import Prediction
from trainpilot.profiling import WorkloadProfile
from trainpilot.profiling import profile as profile_step
from trainpilot.selection.choice import Limits, Selection, choose, is_known, no_data_reason, unknown_prediction
from trainpilot.selection.load import adjust_for_load, interference_factor, load_notes, others_utilization
from trainpilot.settings import load_settings
from trainpilot.workload import Workload

_logger = logging.getLogger("trainpilot")


def usable_backend(name: str | Backend) -> Backend:
    """Return a backend that was asked for by name, after a probe.

    Raises:
        UnknownNameError: No backend has that name.
        BackendUnusableError: It cannot run here; the text has the reason.
    """
    backend = _backend(name)
    found = backend.probe(load_settings().probe_timeout_s)
    if not found.usable:
        raise BackendUnusableError(f"backend {backend.name} cannot be used here: {found.reason}")
    return backend


def check_threads(settings: ExecutionSettings) -> None:
    """Refuse more threads than there are usable cores.

    Raises:
        UsageError: There are more.
    """
    cores = usable_cores()
    if settings.threads is not None and settings.threads > cores:
        raise UsageError(f"threads must be at most {cores}, the usable cores of this machine, got {settings.threads}")


def predict_under_load(
    workload: Workload,
    backend: Backend,
    cpu_utilization: float,
    *,
    settings: ExecutionSettings | None = None,
    profile: WorkloadProfile | None = None,
    probe: bool = False,
) -> Prediction:
    """Predict a workload on a backend, adjusted for what else the machine does; unknown where there is no data.

    Args:
        workload: What to train.
        backend: Where.
        cpu_utilization: Busy share of the CPU by everything else, 0 to 1; accelerators tell their own.
        settings: Execution settings.
        profile: Profile of the workload, if it is at hand.
        probe: Run a few real steps where the prediction alone says too little.

    Raises:
        UnsupportedError: The backend lacks an operator, dtype or setting of the workload.
        MeasurementError: A probe would not fit into memory, or gave no time.
    """
    try:
        found = predictors.predict(workload, backend.name, settings=settings, profile=profile, probe=probe)
    except NoDataError as error:
        return unknown_prediction(backend.name, str(error))
    if found.source == "measured":  # the probe ran beside the same load
        return found
    if backend.name == "cpu":
        cores = usable_cores()
        threads = cores if settings is None or settings.threads is None else settings.threads
        return adjust_for_load(
            found, interference_factor(cpu_utilization, threads=threads, cores=cores), cpu_utilization
        )
    utilization = backend.info().utilization
    if utilization is None:
        return found
    # A device is one unit: whatever runs on it wants all of it.
    return adjust_for_load(found, interference_factor(utilization, threads=1, cores=1), utilization)


def select(
    workload: Workload,
    *,
    backends: Sequence[str | Backend] | None = None,
    objective: str = "time",
    settings: ExecutionSettings | Sequence[ExecutionSettings] | None = None,
    hardware_state: Mapping[str, Any] | None = None,
    memory_limit_bytes: int | None = None,
    power_limit_w: float | None = None,
    profile: WorkloadProfile | None = None,
    probe: bool = False,
) -> Selection:
    """Choose where to train a workload.

    Every candidate is probed; those that run get a prediction, adjusted for the observed load, and the one that
    needs least is chosen (see ``choose``). The rule cascade answers only where no usable candidate has a prediction
    (the rules are about time, so no other objective or limit falls back on them); then
    ``source`` is ``rules`` and the reasons say so. The simulated backend is a candidate only if it is named.

    Args:
        workload: What to train.
        backends: Candidates, by name or as objects; default: every real backend.
        objective: ``time`` or ``energy``, of the whole plan.
        settings: Execution settings, or several to compare on each backend, the simplest first; a dtype other than
            the workload's is only considered if it stands here.
        hardware_state: Observed state with ``cpu_utilization``, 0 to 1; default: sampled now.
        memory_limit_bytes: Memory that the run may use; default: what is available on the device.
        power_limit_w: Mean power that the run may draw, in W.
        profile: Profile of the workload, if it is at hand.
        probe: Run a few real steps on each candidate of which the prediction alone says too little.

    Raises:
        UnknownNameError: A backend or the objective does not exist.
        UsageError: ``workload`` is no Workload, ``backends`` or ``settings`` is empty, a limit is not above 0, or more
            threads are asked for than there are usable cores.
        BackendUnusableError: No candidate can be used; the text has the reason of each.
        NoDataError: No candidate is within the limits.
    """
    if not isinstance(workload, Workload):
        raise UsageError(f"select takes a Workload, got {type(workload).__name__}: make one with Workload(model, ...)")
    if memory_limit_bytes is not None and memory_limit_bytes < 1:
        raise UsageError(f"memory limit must be at least 1 byte, got {memory_limit_bytes}")
    variants = _variants(settings)
    for variant in variants:
        if variant is not None:
            check_threads(variant)
    usable, excluded = _probe(backends)
    if not usable:
        told = "; ".join(f"{name}: {reason}" for name, reason in excluded.items())
        raise BackendUnusableError(f"no backend can be used here: {told}")
    if profile is None:
        profile = profile_step(_within_data(workload))
    utilization = _cpu_utilization(hardware_state)
    labelled = {
        _label(backend.name, variant, variants): (backend, variant) for backend in usable for variant in variants
    }
    predictions: dict[str, Prediction] = {}
    room: dict[str, int] = {}
    for label, (backend, variant) in labelled.items():
        try:
            predictions[label] = predict_under_load(
                workload, backend, utilization, settings=variant, profile=profile, probe=probe
            )
        except (UnsupportedError, MeasurementError) as error:
            excluded[label] = str(error)
            continue
        available = backend.info().memory_available_bytes if memory_limit_bytes is None else memory_limit_bytes
        if available is not None:
            room[label] = available
    nothing_known = not any(is_known(found) for found in predictions.values())
    if predictions and nothing_known and objective == "time" and power_limit_w is None:
        return _by_rules(profile, predictions, excluded, utilization)
    limits = Limits(memory_bytes=room, power_w=power_limit_w)
    selection = choose(predictions, objective=objective, limits=limits, excluded=excluded)
    loaded = [f"{label}: {note}" for label, found in predictions.items() for note in load_notes(found)]
    return dataclasses.replace(
        selection, settings=labelled[selection.candidate][1], reasons=(*selection.reasons, *loaded)
    )


def _backend(given: str | Backend) -> Backend:
    return given if isinstance(given, Backend) else get_backend(given)


def _within_data(workload: Workload) -> Workload:
    """The workload at the largest batch that its data fill; a larger one never runs."""
    plan = workload.plan
    fixed = workload.example_inputs is not None and not callable(workload.example_inputs)
    if fixed or plan.batch_size <= plan.dataset_size:
        return workload
    return dataclasses.replace(workload, batch_size=plan.dataset_size)


def _variants(settings: ExecutionSettings | Sequence[ExecutionSettings] | None) -> tuple[ExecutionSettings | None, ...]:
    if settings is None or isinstance(settings, ExecutionSettings):
        return (settings,)
    if not settings:
        raise UsageError("settings to compare: give at least one")
    return tuple(settings)


def _probe(backends: Sequence[str | Backend] | None) -> tuple[list[Backend], dict[str, str]]:
    """Usable backends, and why the others are not."""
    if backends is None:
        candidates = list(candidate_backends())
    elif isinstance(backends, str) or not backends:
        raise UsageError("backends to compare: give a list of at least one name")
    else:
        candidates = [_backend(item) for item in backends]
    usable: list[Backend] = []
    excluded: dict[str, str] = {}
    limit = load_settings().probe_timeout_s
    for backend in candidates:
        found = backend.probe(limit)
        if found.usable:
            usable.append(backend)
        else:
            excluded[backend.name] = found.reason
            # Not a warning: a machine without an accelerator is nothing to warn about.
            _logger.info("backend %s is left out: %s", backend.name, found.reason)
    return usable, excluded


def _label(name: str, variant: ExecutionSettings | None, variants: Sequence[ExecutionSettings | None]) -> str:
    if variant is None or len(variants) == 1:
        return name
    threads = "all threads" if variant.threads is None else f"{variant.threads} threads"
    return f"{name} ({variant.dtype}, {threads}, {variant.memory_format})"


def _cpu_utilization(hardware_state: Mapping[str, Any] | None) -> float:
    if hardware_state is None:
        return others_utilization()
    value = hardware_state.get("cpu_utilization")
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
        raise ObservationError(f"hardware state: cpu_utilization must be a share from 0 to 1, got {value!r}")
    return float(value)


def _by_rules(
    profile: WorkloadProfile,
    predictions: Mapping[str, Prediction],
    excluded: Mapping[str, str],
    utilization: float,
) -> Selection:
    """The cascade's answer among candidates of which nothing is known."""
    backends: dict[str, str] = {}
    for label, found in predictions.items():
        backends.setdefault(found.backend, label)  # the first of several settings is the simplest
    rule = rules.decide(profile, ane_available="ane" in backends, cpu_utilization=utilization)
    unknown = ", ".join(backends)
    reasons = [f"no predictor has data for {unknown}, so a rule answers: {rule.reason}"]
    backend, confidence = rule.backend, rule.confidence
    if backend not in backends:
        # The rules know two backends only; where theirs is no candidate, there is no evidence for any of the others.
        backend, confidence = next(found.backend for found in predictions.values()), 1 / len(backends)
        reasons.append(
            f"the rule's answer {rule.backend} is no candidate here; {backend} is the first of those that are"
        )
    return Selection(
        backend=backend,
        confidence=confidence,
        predictions=dict(predictions),
        reasons=tuple(reasons),
        excluded={**excluded, **{name: no_data_reason(name) for name in backends if name != backend}},
        clear=len(backends) == 1,
        source="rules",
        objective="time",
        candidate=backends[backend],
    )
