"""Training a workload: decide, train, save, record."""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainpilot.backends import Backend, ExecutionSettings, TrainingSession, candidate_backends
from trainpilot.benchmarking.timing import quantile
from trainpilot.errors import BackendUnusableError, UnsupportedError, UsageError
from trainpilot.hardware import Load, sample_load
from trainpilot.hardware.others import OthersMeter
from trainpilot.predictors import Prediction
from trainpilot.profiling import WorkloadProfile
from trainpilot.profiling import profile as profile_step
from trainpilot.selection import (
    LOAD_INTERVAL_S,
    Selection,
    check_threads,
    predict_under_load,
    select,
    usable_backend,
)
from trainpilot.train_orchestrated.checkpoint import check_writable, save_weights
from trainpilot.train_orchestrated.interrupt import StopRequest
from trainpilot.train_orchestrated.loop import Run, train_epochs
from trainpilot.train_orchestrated.record import RunContext, as_measurement, check_store, interference, record
from trainpilot.train_orchestrated.result import Progress, TrainingResult
from trainpilot.train_orchestrated.samples import Splits, split_samples, zoo_entry
from trainpilot.train_orchestrated.seed import check_seed
from trainpilot.train_orchestrated.supervision import check_labels, has_given_loss, requiring_own_loss
from trainpilot.workload import Workload

AUTO = "auto"

_logger = logging.getLogger("trainpilot")


@dataclasses.dataclass(frozen=True)
class _Decision:
    """Where to train, opened."""

    backend: Backend
    settings: ExecutionSettings
    session: TrainingSession
    setup_time_s: float
    prediction: Prediction
    selection: Selection | None


def train(
    workload: Workload,
    data: Any,
    backend: str | Backend = AUTO,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    settings: ExecutionSettings | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> TrainingResult:
    """Train a workload on data, and record the run as a row of the timing dataset.

    A model object is not changed: a copy of it is trained, and ``checkpoint`` keeps the weights. Batches are drawn in
    an order that ``seed`` decides; the last batch of an epoch is smaller where the sizes do not divide, and a last
    batch of one sample joins the one before it where the model has batch normalisation. The first Ctrl-C ends the run
    at the next step, saved and recorded.

    Args:
        workload: What to train; its number of samples is replaced by that of the data.
        data: ``TrainingData``, ``(X, y)`` or ``(X, y, X_val, y_val)``; X is an array of shape (n, ...), or a tuple or
            dict of arrays as the model is called with. Without held-out samples a fifth is held out.
        backend: A backend, or ``auto`` for the best usable one.
        epochs: Passes over the data; default: the workload's.
        batch_size: Samples per step; default: the workload's. More than there are samples means all of them.
        settings: Execution settings; default: the workload's dtype, all usable threads.
        seed: Decides the order, dropout, and which samples are held out.
        checkpoint: File for the weights, readable with ``torch.load(path, weights_only=True)``.
        progress: Called after each step.

    Raises:
        UnknownNameError: No backend has that name.
        UsageError: A number is wrong, ``workload`` is no Workload, or the plan accumulates gradients.
        StoreError: The timing dataset is damaged, of another schema, or cannot be opened; told before training.
        DataError: The data cannot be used (see ``split_samples``).
        BackendUnusableError: The backend cannot be used here; another one is never put in its place.
        UnsupportedError: The backend lacks what the workload needs.
        ModelError: The model cannot be built or profiled, has nothing to train, or there are no targets and no loss.
        NonFiniteLossError: The loss became NaN or infinite; the run is recorded.
        TrainingError: A step failed (recorded), or the checkpoint cannot be written (refused before training).
    """
    if not isinstance(workload, Workload):
        raise UsageError(f"train takes a Workload, got {type(workload).__name__}: make one with Workload(model, ...)")
    seed = check_seed(seed)
    if settings is not None:
        check_threads(settings)
    if workload.accumulate > 1:
        raise UsageError(f"{workload.name}: training with accumulate={workload.accumulate} is not possible; use 1")
    target = None if checkpoint is None else Path(checkpoint)
    if target is not None:
        check_writable(target)
    if backend != AUTO:
        backend = usable_backend(backend)
        if backend.simulated:
            raise BackendUnusableError(f"backend {backend.name} does not train: it is for tests and documentation")
    check_store()
    notes: list[str] = []
    splits = split_samples(workload, data, seed)
    workload = _planned(workload, splits, epochs, batch_size, notes)
    stepped = requiring_own_loss(workload) if splits.train.targets is None else workload
    load = sample_load(LOAD_INTERVAL_S)
    profile = profile_step(stepped)
    decision = _decide(stepped, profile, backend, settings, load, notes)
    return _run(workload, splits, profile, decision, load, notes, seed=seed, checkpoint=target, progress=progress)


def _planned(
    workload: Workload, splits: Splits, epochs: int | None, batch_size: int | None, notes: list[str]
) -> Workload:
    """The workload with the plan of this run, and with the data as example inputs unless a function makes them."""
    size = splits.train.size
    wanted = workload.batch_size if batch_size is None else batch_size
    assert wanted is not None
    if wanted > size:
        notes.append(f"batch size {wanted} is more than the {size} training samples: each epoch is one step of {size}")
        wanted = size
    changes: dict[str, Any] = {
        "dataset_size": size,
        "batch_size": wanted,
        "epochs": workload.epochs if epochs is None else epochs,
        "validation_size": 0 if splits.validation is None else splits.validation.size,
    }
    if zoo_entry(workload) is None and not callable(workload.example_inputs) and workload.input_spec is None:
        first = splits.train.take(np.arange(wanted))
        changes["example_inputs"] = first.inputs
        if not callable(workload.targets):
            changes["targets"] = first.targets
    return dataclasses.replace(workload, **changes)


def _decide(
    workload: Workload,
    profile: WorkloadProfile,
    backend: str | Backend,
    settings: ExecutionSettings | None,
    load: Load,
    notes: list[str],
) -> _Decision:
    if isinstance(backend, Backend):
        chosen = settings or ExecutionSettings(dtype=workload.dtype)
        prediction = predict_under_load(workload, backend, load.cpu_utilization, settings=settings, profile=profile)
        session, setup_time_s = _open(workload, backend, chosen)
        return _Decision(backend, chosen, session, setup_time_s, prediction, None)
    left: Sequence[Backend] = candidate_backends()
    while True:
        selection = select(
            workload,
            backends=left,
            settings=settings,
            hardware_state={"cpu_utilization": load.cpu_utilization},
            profile=profile,
        )
        found = next(candidate for candidate in left if candidate.name == selection.backend)
        chosen = selection.settings or ExecutionSettings(dtype=workload.dtype)
        try:
            session, setup_time_s = _open(workload, found, chosen)
        except (BackendUnusableError, UnsupportedError) as error:
            left = [candidate for candidate in left if candidate is not found]
            if not left:
                raise
            notes.append(f"{found.name} was chosen but could not be used ({error}), so the next one is taken")
            _logger.warning("%s", notes[-1])
            continue
        prediction = selection.predictions[selection.candidate]
        return _Decision(found, chosen, session, setup_time_s, prediction, selection)


def _open(workload: Workload, backend: Backend, settings: ExecutionSettings) -> tuple[TrainingSession, float]:
    begin = time.perf_counter()
    session = backend.prepare(workload, settings)
    session.synchronize()
    return session, time.perf_counter() - begin


def _run(
    workload: Workload,
    splits: Splits,
    profile: WorkloadProfile,
    decision: _Decision,
    load: Load,
    notes: list[str],
    *,
    seed: int,
    checkpoint: Path | None,
    progress: Callable[[Progress], None] | None,
) -> TrainingResult:
    import torch

    started_at, begin = time.time(), time.perf_counter()
    others = OthersMeter()
    weights: dict[str, Any] = {}
    with decision.session as session, StopRequest() as stop:
        _check_targets(workload, session, splits)
        # The session has seeded the initial weights and gives the process's random state back when it is closed.
        torch.manual_seed(seed)
        run = train_epochs(session, splits, workload.plan, name=workload.name, seed=seed, stop=stop, progress=progress)
        execution_time_s = decision.setup_time_s + time.perf_counter() - begin
        placement = session.placement()
        context = RunContext(
            row_id=uuid.uuid4().hex,
            workload=workload,
            profile=profile,
            backend=decision.backend,
            settings=decision.settings,
            load=load,
            started_at=started_at,
            threads=torch.get_num_threads(),
            setup_time_s=decision.setup_time_s,
            placement=placement,
            peak_memory_bytes=session.peak_memory_bytes(),
            others_cores=others.cores(),
        )
        if checkpoint is not None and run.error is None:
            weights = session.state_dict()
        recorded_in, warning = record(as_measurement(context, run))
    if warning:
        notes.append(warning)
    disturbed = interference(context, run)
    if disturbed:
        notes.append(f"{disturbed} during the run, so its times are longer than on a quiet machine")
        _logger.warning("%s", notes[-1])
    if run.error is not None:
        raise run.error
    if checkpoint is not None:
        save_weights(checkpoint, weights)
    return _result(workload, run, decision, context, notes, execution_time_s, recorded_in, checkpoint, seed)


def _check_targets(workload: Workload, session: TrainingSession, splits: Splits) -> None:
    """Refuse labels that are no classes of a model of the user's own, before its first step; zoo models know theirs.

    Raises:
        DataError: A label is no class of the model.
    """
    targets = splits.train.targets
    if targets is None or targets.is_floating_point() or zoo_entry(workload) is not None or has_given_loss(workload):
        return
    first = splits.train.take(np.arange(min(splits.train.size, workload.plan.batch_size)))
    assert first.targets is not None
    try:
        outputs = session.forward(first.inputs)
    except Exception:  # noqa: BLE001 - the first step or the validation meets the same and tells it with its place
        return
    held_out = None if splits.validation is None else splits.validation.targets
    check_labels(workload.name, outputs, first.targets, [part for part in (targets, held_out) if part is not None])


def _result(
    workload: Workload,
    run: Run,
    decision: _Decision,
    context: RunContext,
    notes: Sequence[str],
    execution_time_s: float,
    recorded_in: str,
    checkpoint: Path | None,
    seed: int,
) -> TrainingResult:
    last = run.epochs[-1] if run.epochs else None
    said = [
        f"trained {workload.name} on {decision.backend.name}: {run.reason or f'{run.steps} steps'} "
        f"in {execution_time_s:.2f} s"
    ]
    loss = run.last_loss if last is None else last.loss
    if loss is not None and run.initial_loss is not None:
        said.append(f"loss {run.initial_loss:.3g} -> {loss:.3g}")
    if last is not None and last.accuracy is not None:
        said.append(f"held-out accuracy {last.accuracy:.1%}")
    result = TrainingResult(
        status="interrupted" if run.interrupted else "success",
        backend=decision.backend.name,
        placement=context.placement or "unknown",
        message="",
        params=context.profile.params,
        execution_time_s=execution_time_s,
        setup_time_s=decision.setup_time_s,
        first_step_s=run.first_step_s,
        step_time_s=quantile(run.full_steps_s, 0.5) if run.full_steps_s else None,
        initial_loss=run.initial_loss,
        loss=loss,
        accuracy=None if last is None else last.accuracy,
        steps=run.steps,
        planned_steps=run.planned_steps,
        epochs=tuple(run.epochs),
        prediction=decision.prediction,
        selection=decision.selection,
        row_id=context.row_id,
        recorded_in=recorded_in,
        checkpoint=checkpoint,
        seed=seed,
        validation_size=workload.validation_size,
        warnings=tuple(notes),
    )
    predicted = result.predicted_training_time
    said.append(
        "the time was not predicted"
        if predicted is None
        else f"{result.training_time_s:.2f} s without setup, predicted {predicted.value:.2f} s"
    )
    return dataclasses.replace(result, message="; ".join(said))
