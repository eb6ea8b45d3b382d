"""The training loop: epochs of shuffled mini-batches on a session, timed step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trainpilot.backends import TrainingSession
from trainpilot.benchmarking.timing import quantile
from trainpilot.errors import NonFiniteLossError, TrainingError, TrainPilotError, UnsupportedError
from trainpilot.train_orchestrated.interrupt import StopRequest
from trainpilot.train_orchestrated.result import EpochResult, Progress
from trainpilot.train_orchestrated.samples import Samples, Splits, batch_indices
from trainpilot.workload import TrainingPlan, main_output

if TYPE_CHECKING:
    from torch import Tensor

_RECENT_STEPS = 50
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # how torch says it on accelerators and on the CPU


@dataclass
class Run:
    """What has happened so far; filled by ``train_epochs``. Times in s.

    Attributes:
        status: Status of the row: ``ok`` or what went wrong.
        reason: Why it is not ``ok``, or that the run was interrupted.
        error: What to raise once the run is recorded.
        interrupted: Ctrl-C ended the run.
        planned_steps: Steps of all epochs.
        steps: Steps done.
        full_steps_s: Times of the steps with a full batch, the first step left out.
        first_step_s: Time of the first step.
        data_s: Time to make each batch.
        cpu_time_s: CPU time of this process in all steps.
        initial_loss: Loss of the first step.
        last_loss: Loss of the last step.
        epochs: Finished epochs.
    """

    status: str = "ok"
    reason: str = ""
    error: TrainPilotError | None = None
    interrupted: bool = False
    planned_steps: int = 0
    steps: int = 0
    full_steps_s: list[float] = field(default_factory=list)
    first_step_s: float | None = None
    data_s: list[float] = field(default_factory=list)
    cpu_time_s: float = 0.0
    initial_loss: float | None = None
    last_loss: float | None = None
    epochs: list[EpochResult] = field(default_factory=list)

    def fail(self, status: str, error: TrainPilotError) -> None:
        """End the run with an error."""
        self.status, self.reason, self.error = status, str(error), error


def train_epochs(
    session: TrainingSession,
    splits: Splits,
    plan: TrainingPlan,
    *,
    name: str,
    seed: int,
    stop: StopRequest,
    progress: Callable[[Progress], None] | None = None,
) -> Run:
    """Train.

    Args:
        session: The model on its backend.
        splits: The samples.
        plan: Batch size, epochs and what becomes of the last batch.
        name: What messages call the workload.
        seed: Decides the order of the samples.
        stop: Asked before each step.
        progress: Called after each step.

    Returns:
        The run; it does not raise what the model or the backend raise, but keeps it in ``error``.
    """
    rng = np.random.default_rng(seed)
    merge_single = has_batch_norm(session.model)
    orders = [
        list(
            batch_indices(splits.train.size, plan.batch_size, rng, drop_last=plan.drop_last, merge_single=merge_single)
        )
        for _ in range(plan.epochs)
    ]
    run = Run(planned_steps=sum(len(order) for order in orders))
    begin = time.perf_counter()
    for number, order in enumerate(orders, start=1):
        epoch_begin, losses, sizes = time.perf_counter(), [], []
        for index in order:
            if stop.requested:
                run.interrupted = True
                run.reason = f"interrupted after {run.steps} of {run.planned_steps} steps"
                return run
            try:
                loss = _step(session, splits.train, index, plan, run)
            except Exception as error:  # noqa: BLE001 - the user's model may raise anything; train() reports it
                run.fail(*_described(error, f"{name}: step {run.steps + 1}"))
                return run
            if not math.isfinite(loss):
                run.fail(
                    "nonfinite_loss",
                    NonFiniteLossError(
                        f"{name}: the loss is {loss} at step {run.steps} of {run.planned_steps}: "
                        "try a lower learning rate, or look for such values in the data"
                    ),
                )
                return run
            losses.append(loss)
            sizes.append(len(index))
            if progress is not None:
                now = time.perf_counter() - begin
                progress(
                    Progress(
                        number, plan.epochs, run.steps, run.planned_steps, loss, now, _remaining_s(run, number, plan)
                    )
                )
        trained = time.perf_counter()
        try:
            accuracy = (
                None if splits.validation is None else validate(session, splits.validation, plan.batch_size, stop)
            )
        except Exception as error:  # noqa: BLE001 - as above
            run.fail(*_described(error, f"{name}: validation after epoch {number}"))
            return run
        run.epochs.append(
            EpochResult(
                loss=float(np.average(losses, weights=sizes)),
                accuracy=accuracy,
                time_s=trained - epoch_begin,
                validation_time_s=time.perf_counter() - trained,
            )
        )
    return run


def validate(session: TrainingSession, samples: Samples, batch_size: int, stop: StopRequest) -> float | None:
    """Share of samples that are classified right; None if they have no classes, or after Ctrl-C."""
    right = total = 0
    for start in range(0, samples.size, batch_size):
        if stop.requested:
            return None
        batch = samples.take(np.arange(start, min(start + batch_size, samples.size)))
        found = _count_right(main_output(session.forward(batch.inputs)), batch.targets)
        if found is None:
            return None
        right += found[0]
        total += found[1]
    return right / total


def has_batch_norm(model: Any) -> bool:
    """True if a layer normalises over the batch."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _step(session: TrainingSession, samples: Samples, index: Any, plan: TrainingPlan, run: Run) -> float:
    begin = time.perf_counter()
    batch = samples.take(index)
    ready, cpu = time.perf_counter(), time.process_time()
    # The loss is read in every step: a run that went wrong must stop there, and reading it waits for the device.
    loss = float(session.step(batch.inputs, batch.targets))
    session.synchronize()
    elapsed = time.perf_counter() - ready
    run.cpu_time_s += time.process_time() - cpu
    run.data_s.append(ready - begin)
    run.steps += 1
    run.last_loss = loss
    if run.first_step_s is None:
        run.first_step_s, run.initial_loss = elapsed, loss
    elif len(index) == plan.batch_size:
        run.full_steps_s.append(elapsed)
    return loss


def _remaining_s(run: Run, epoch: int, plan: TrainingPlan) -> float:
    recent = run.full_steps_s[-_RECENT_STEPS:]
    step_s = quantile(recent, 0.5) if recent else run.first_step_s or 0.0
    validation_s = [done.validation_time_s for done in run.epochs]
    per_validation_s = quantile(validation_s, 0.5) if validation_s else 0.0
    return (run.planned_steps - run.steps) * step_s + (plan.epochs - epoch + 1) * per_validation_s


def _count_right(prediction: Tensor | None, targets: Tensor | None) -> tuple[int, int] | None:
    """(right, all) of classified values: classes along dimension 1, or along the last one (see ``compute_loss``)."""
    if prediction is None or targets is None or targets.is_floating_point() or prediction.ndim != targets.ndim + 1:
        return None
    if prediction.shape[0] == targets.shape[0] and prediction.shape[2:] == targets.shape[1:]:
        classes = prediction.argmax(1)
    elif prediction.shape[:-1] == targets.shape:
        classes = prediction.argmax(-1)
    else:
        return None
    return int((classes == targets).sum()), targets.numel()


def _described(error: Exception, place: str) -> tuple[str, TrainPilotError]:
    """Status of the row and the error to raise; the message is kept, not the exception, which would hold tensors."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, UnsupportedError):
        return "unsupported", UnsupportedError(f"{place}: {error}")
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in _OUT_OF_MEMORY):
        return "oom", TrainingError(f"{place}: not enough memory: {message}")
    return "failed", TrainingError(f"{place} failed: {message}")
