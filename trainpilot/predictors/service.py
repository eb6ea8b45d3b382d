"""Predict what training a workload will take on a backend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.errors import ArtifactError, BackendUnusableError, NoDataError
from trainpilot.hardware import check_threads, machine, usable_cores
from trainpilot.predictors.analytic import calibrated_step_time_s
from trainpilot.predictors.prediction import Estimate, Prediction, Source
from trainpilot.predictors.table import Context, table_of_profile
from trainpilot.predictors.targets import ENERGY, PEAK_MEMORY, SETUP_TIME, STEP_TIME
from trainpilot.predictors.totals import StepTimes, plan_times

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trainpilot.backends import Backend
    from trainpilot.hardware import Calibration
    from trainpilot.predictors.model import Forecast
    from trainpilot.predictors.predictor import Predictor
    from trainpilot.predictors.table import WorkTable
    from trainpilot.profiling import WorkloadProfile
    from trainpilot.workload import TrainingPlan, Workload

# The parts of a step that run for every micro-batch; the optimizer runs once for several.
_MICRO_PHASES = ("forward", "loss", "backward")
_NO_ROWS = "from calibration figures alone: nothing was measured yet, so no interval is valid"


@dataclasses.dataclass(frozen=True)
class _Known:
    """What one source knows of a workload.

    Attributes:
        source: Where the step time comes from.
        step: Step time in s.
        in_range: Whether the workload is inside what was measured.
        notes: What a reader should know.
        seconds: Seconds that the additive model of the source gives to n steps, shape (n,); only their ratios are
            used, to split the step and to scale it to the last batch.
        others: The other targets that are known, by name.
    """

    source: Source
    step: Estimate
    in_range: bool
    notes: tuple[str, ...]
    seconds: Callable[[WorkTable], NDArray[np.float64]]
    others: Mapping[str, Estimate]


def predict(
    workload: Workload,
    backend: str = "cpu",
    *,
    settings: ExecutionSettings | None = None,
    profile: WorkloadProfile | None = None,
    predictor: Predictor | None = None,
    calibrate: bool = True,
    probe: bool = False,
) -> Prediction:
    """Predict step time, setup, epoch and total time, peak memory and energy without running the workload.

    The source is ``learned`` where the predictor in use, or the library's reference predictor, has rows of this
    backend and these execution settings; else ``analytic``, from calibration figures alone; else ``unknown``, with the
    command that would change that. Nothing that was never measured is priced as something else.

    Args:
        workload: What to train.
        backend: Name of the backend.
        settings: Execution settings; default: the workload's dtype on all usable threads.
        profile: Profile of the workload, if it is at hand; default: it is traced now. A batch that is larger than
            the data holds all of them, and is traced at that size.
        predictor: Predictor to ask; default: the one in use. One that is given is asked about its own machine.
        calibrate: Probe the backend for a few seconds if there is no predictor and nothing is cached.
        probe: Run a few real steps where the prediction alone says too little (see ``why_probe``) and join both;
            ``source`` is ``measured`` then, and the notes say what it cost.

    Raises:
        UnknownNameError: There is no such backend.
        UsageError: More threads are asked than this process may use.
        ModelError: The workload cannot be traced, or not run for a probe.
        MeasurementError: The probe would not fit into memory, or gave no time.
        PredictorError: A feature of the profile is not finite; the text names it.
    """
    device = get_backend(backend)
    if settings is None:
        settings = ExecutionSettings(dtype=workload.dtype)
    if predictor is None and not device.simulated:  # a predictor that is given may be about another machine
        check_threads(settings.threads)
    notes: list[str] = []
    plan = workload.plan
    clamped = plan.batch_size > plan.dataset_size
    if clamped:
        size = plan.dataset_size
        notes.append(f"batch size {plan.batch_size} is more than the {size} samples: each epoch is one step of {size}")
        plan = dataclasses.replace(plan, batch_size=size)
    fixed = workload.example_inputs is not None and not callable(workload.example_inputs)
    if profile is None or (clamped and not fixed and profile.batch_size > plan.batch_size):
        from trainpilot.profiling import profile as trace

        # Fixed inputs have one size only; the amounts of their trace are scaled.
        profile = trace(workload if fixed else dataclasses.replace(workload, batch_size=plan.batch_size))
    threads = usable_cores() if settings.threads is None else settings.threads
    context = Context(_machine_id(predictor), backend, threads, settings.dtype, settings.memory_format)
    if predictor is None:
        predictor, told = _predictor_here(device, settings, context, run=calibrate or probe)
        notes.extend(told)
    # A batch that cannot be traced (batch normalisation of one sample) is traced at another size.
    table = table_of_profile(profile, context, batch_scale=plan.batch_size / profile.batch_size)
    known: _Known | None = None
    if predictor is not None:
        try:
            known = _learned(predictor, table)
        except NoDataError as error:
            notes.append(str(error))
    else:
        notes.append(f"no data for backend {backend}: run trainpilot benchmark --backend {backend} and trainpilot fit")
    if known is None:
        try:
            calibration = device.calibration(settings, run=calibrate or probe)
        except BackendUnusableError as error:
            return _unknown(backend, profile, [*notes, str(error)])
        if calibration is None:
            return _unknown(backend, profile, notes)
        known = _analytic(calibration, table)
    if profile.uncounted_ops and known.step.low is not None:
        known = dataclasses.replace(known, step=Estimate(known.step.value), in_range=False)
        notes.append("no interval is valid where some operators have no formula for their FLOPs")
    if probe:
        known = _probed(
            known,
            workload if fixed or not clamped else dataclasses.replace(workload, batch_size=plan.batch_size),
            backend,
            settings,
            profile,
        )
    return _assemble(plan, profile, known, table, [*notes, *known.notes, *profile.notes])


def _predictor_here(
    device: Backend, settings: ExecutionSettings, context: Context, *, run: bool
) -> tuple[Predictor | None, list[str]]:
    """The predictor to ask on this machine, and what to say of it: the one in use, or the library's reference."""
    from trainpilot.predictors.registry import load_active
    from trainpilot.predictors.shipped import load_reference
    from trainpilot.predictors.transfer import moved

    notes: list[str] = []
    found: Predictor | None = None
    what = ""
    for what, load in (("the predictor in use", load_active), ("the library's reference predictor", load_reference)):
        try:
            found = load(context.backend)
        except ArtifactError as error:
            notes.append(f"{what} cannot be read and is left out: {error}")
        if found is not None:
            break
    if found is None:
        return None, notes
    if what.startswith("the library"):
        notes.append(f"from {what}: run `trainpilot benchmark --quick` and `trainpilot fit` for one of your own")
    if context.machine_id in {known.machine_id for known in found.contexts} or found.step.domain_.unknown(context):
        return found, notes
    try:
        calibration = device.calibration(settings, run=run)
    except BackendUnusableError:  # told where calibration figures alone are asked for
        calibration = None
    if calibration is None:
        return found, notes
    notes.append(
        f"{what} was fitted on another machine and is moved here by calibration figures: no interval is valid before "
        "rows of this machine exist"
    )
    return moved(found, context, calibration.figures), notes


def _machine_id(given: Predictor | None) -> str:
    """This machine, or the one that a given predictor is about if it knows no other."""
    here = machine().machine_id
    known = set() if given is None else {context.machine_id for context in given.contexts}
    return next(iter(known)) if len(known) == 1 else here


def _learned(predictor: Predictor, table: WorkTable) -> _Known:
    """What a predictor knows.

    Raises:
        NoDataError: It has no data for the backend, execution settings or machine.
    """
    context, optimizer = table.context[0], table.optimizer[0]
    predictor.check_known(context)

    def seconds(steps: WorkTable) -> NDArray[np.float64]:
        return predictor.step.additive_total(steps)

    if not predictor.knows_optimizer(optimizer):
        # The operations of the optimizer are counted all the same, so their sum is the best that can be said.
        note = (
            f"no data for optimizer {optimizer}: its operations are priced by the additive model alone, "
            f"without an interval: run trainpilot benchmark --backend {context.backend} and trainpilot fit"
        )
        return _Known("analytic", Estimate(float(seconds(table)[0])), False, (note,), seconds, {})
    forecasts = {name: found[0] for name, found in predictor.forecast_all(table).items()}
    forecast = forecasts.pop(STEP_TIME.name)
    others = {name: _estimate(found, predictor.targets[name].level) for name, found in forecasts.items()}
    step = _estimate(forecast, predictor.step.level)
    notes = (*(f"the predictor in use: {warning}" for warning in predictor.provenance.warnings), *forecast.notes)
    return _Known("learned", step, forecast.in_range, notes, seconds, others)


def _analytic(calibration: Calibration, table: WorkTable) -> _Known:
    """What calibration figures alone tell."""

    def seconds(steps: WorkTable) -> NDArray[np.float64]:
        return calibrated_step_time_s(steps, calibration)

    notes = [_NO_ROWS]
    if calibration.disturbed:
        notes.append(
            "something else used the machine during the calibration, so the times may be far too long: "
            f"run `trainpilot calibrate --backend {calibration.backend} --refresh` when it is quiet"
        )
    return _Known("analytic", Estimate(float(seconds(table)[0])), False, tuple(notes), seconds, {})


def _probed(
    known: _Known, workload: Workload, backend: str, settings: ExecutionSettings, profile: WorkloadProfile
) -> _Known:
    """What is known after a few real steps, if those tell more."""
    from trainpilot.predictors.probing import combine, run_probe, why_probe

    reason = why_probe(known.step, known.in_range)
    if not reason:
        return dataclasses.replace(known, notes=(*known.notes, "not probed: the prediction is narrow and in range"))
    found = run_probe(workload, backend, settings, profile)
    others = dict(known.others) | {SETUP_TIME.name: Estimate(found.setup_time_s)}
    if found.peak_memory_bytes is not None:
        others[PEAK_MEMORY.name] = Estimate(float(found.peak_memory_bytes))
    return dataclasses.replace(
        known,
        source="measured",
        step=combine(known.step, found),
        others=others,
        notes=(
            f"{found.note}, because {reason}; joined with the {known.source} prediction of {known.step.value:.3g} s",
            *(note for note in known.notes if note != _NO_ROWS),
        ),
    )


def _estimate(forecast: Forecast, level: float) -> Estimate:
    if forecast.low is None:
        return Estimate(forecast.value)
    return Estimate(forecast.value, forecast.low, forecast.high, level)


def _assemble(
    plan: TrainingPlan, profile: WorkloadProfile, known: _Known, table: WorkTable, notes: list[str]
) -> Prediction:
    context, whole = table.context[0], known.seconds(table)

    def share(batch_scale: float, phases: tuple[str, ...]) -> float:
        """Time of these parts of the step at another batch size, as a part of the full step's time."""
        part = table_of_profile(profile, context, batch_scale=batch_scale, phases=phases)
        return min(1.0, float((known.seconds(part) / whole)[0]))

    full_scale = plan.batch_size / profile.batch_size
    micro = share(full_scale, _MICRO_PHASES)
    last = None
    if plan.last_batch_size:
        last = _scaled(known.step, share(plan.last_batch_size / profile.batch_size, _MICRO_PHASES))
        # Counts are proportional to the batch, and a second trace would fail where a batch of one sample cannot run.
        notes.append(
            f"the last batch has {plan.last_batch_size} samples: its time is scaled from the trace of a full batch"
        )
    validation = None
    if plan.validation_batches:
        validation = _scaled(known.step, share(full_scale, ("forward",)))
        notes.append("validation is priced as the forward part of the training step")
    setup = known.others.get(SETUP_TIME.name)
    if setup is None:
        notes.append("setup time is unknown and not in the total: no measured row tells it")
    notes.append("data loading is unknown and not in the total")
    times = plan_times(
        plan,
        StepTimes(
            micro_batch=_scaled(known.step, micro),
            last_micro_batch=last,
            optimizer=_scaled(known.step, 1.0 - micro),
            validation_batch=validation,
            setup=setup,
        ),
    )
    energy = known.others.get(ENERGY.name)
    steps = (times.total.value - (0.0 if setup is None else setup.value)) / known.step.value
    return Prediction(
        backend=context.backend,
        step_time_s=known.step,
        setup_time_s=setup,
        epoch_time_s=times.epoch,
        total_time_s=times.total,
        peak_memory_bytes=known.others.get(PEAK_MEMORY.name, _traced_peak(profile)),
        energy_j=None if energy is None else _scaled(energy, steps),
        source=known.source,
        in_range=known.in_range,
        notes=tuple(dict.fromkeys(notes)),
    )


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return estimate.map(lambda value: value * factor)


def _traced_peak(profile: WorkloadProfile) -> Estimate:
    return Estimate(float(profile.memory.peak_bytes))


def _unknown(backend: str, profile: WorkloadProfile, notes: list[str]) -> Prediction:
    return Prediction(
        backend=backend,
        step_time_s=None,
        setup_time_s=None,
        epoch_time_s=None,
        total_time_s=None,
        peak_memory_bytes=_traced_peak(profile),
        energy_j=None,
        source="unknown",
        in_range=False,
        notes=tuple(dict.fromkeys([*notes, *profile.notes])),
    )
