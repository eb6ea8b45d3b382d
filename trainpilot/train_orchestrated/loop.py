"""The training loop: epochs of shuffled mini-batches on a session, timed step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainpilot.backends import TrainingSession
from trainpilot.benchmarking.timing import quantile
from trainpilot.errors import NonFiniteLossError, TrainingError, TrainPilotError, UnsupportedError
from trainpilot.predictors import RemainingTime
from trainpilot.train_orchestrated.interrupt import StopRequest
from trainpilot.train_orchestrated.result import EpochResult, Progress
from trainpilot.train_orchestrated.samples import Samples, Splits, batch_indices
from trainpilot.train_orchestrated.supervision import class_dimension
from trainpilot.workload import TrainingPlan, main_output

if TYPE_CHECKING:
    from torch import Tensor

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
        last_step_s: Time of the last step, its batch included.
        data_s: Time to make each batch.
        wall_time_s: Time of all steps together.
        cpu_time_s: CPU time of this process in them.
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
    last_step_s: float = 0.0
    data_s: list[float] = field(default_factory=list)
    wall_time_s: float = 0.0
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

    def batches() -> list[NDArray[np.int64]]:
        size = splits.train.size
        return batch_indices(size, plan.batch_size, rng, drop_last=plan.drop_last, merge_single=merge_single)

    first = batches()
    run = Run(planned_steps=len(first) * plan.epochs)
    watch = _Watch(plan, progress, RemainingTime(run.planned_steps))
    for number in range(1, plan.epochs + 1):
        begin = time.perf_counter()
        loss = _train_once(session, splits.train, first if number == 1 else batches(), plan, run, name, stop, watch)
        trained = time.perf_counter()
        if loss is None:
            break
        try:
            held_out = splits.validation
            accuracy = None if held_out is None else validate(session, held_out, plan.batch_size, stop)
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything; train() reports it
            run.fail(*_described(error, f"{name}: validation after epoch {number}"))
            break
        if stop.requested and held_out is not None and accuracy is None:
            run.interrupted, run.reason = True, f"interrupted in the validation after {run.steps} steps"
        run.epochs.append(EpochResult(loss, accuracy, trained - begin, time.perf_counter() - trained))
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


@dataclass
class _Watch:
    """Tells the caller how far the run is."""

    plan: TrainingPlan
    tell: Callable[[Progress], None] | None
    remaining: RemainingTime
    begin: float = field(default_factory=time.perf_counter)

    def step(self, run: Run) -> None:
        """A step is done."""
        self.remaining.add(run.last_step_s)
        if self.tell is None:
            return
        epoch = len(run.epochs) + 1
        validations_s = [done.validation_time_s for done in run.epochs]
        to_come_s = (self.plan.epochs - epoch + 1) * quantile(validations_s, 0.5) if validations_s else 0.0
        left_s = self.remaining.remaining_s(to_come_s)
        assert left_s is not None  # a step was done
        assert run.last_loss is not None
        elapsed_s = time.perf_counter() - self.begin
        self.tell(Progress(epoch, self.plan.epochs, run.steps, run.planned_steps, run.last_loss, elapsed_s, left_s))


def _train_once(
    session: TrainingSession,
    samples: Samples,
    batches: Sequence[NDArray[np.int64]],
    plan: TrainingPlan,
    run: Run,
    name: str,
    stop: StopRequest,
    watch: _Watch,
) -> float | None:
    """Train on these batches; the mean loss over their samples, or None if the run ended before the last of them."""
    total = 0.0
    for index in batches:
        if stop.requested:
            run.interrupted = True
            run.reason = f"interrupted after {run.steps} of {run.planned_steps} steps"
            return None
        try:
            loss = _step(session, samples, index, plan, run)
        except Exception as error:  # noqa: BLE001 - the user's model may raise anything; train() reports it
            run.fail(*_described(error, f"{name}: step {run.steps + 1}"))
            return None
        if not math.isfinite(loss):
            advice = "try a lower learning rate, or look for such values in the data"
            told = f"{name}: the loss is {loss} at step {run.steps} of {run.planned_steps}: {advice}"
            run.fail("nonfinite_loss", NonFiniteLossError(told))
            return None
        total += loss * len(index)
        watch.step(run)
    return total / sum(len(index) for index in batches)


def _step(session: TrainingSession, samples: Samples, index: Any, plan: TrainingPlan, run: Run) -> float:
    begin = time.perf_counter()
    batch = samples.take(index)
    ready, cpu = time.perf_counter(), time.process_time()
    # The loss is read in every step: a run that went wrong must stop there, and reading it waits for the device.
    loss = float(session.step(batch.inputs, batch.targets))
    session.synchronize()
    elapsed = time.perf_counter() - ready
    run.wall_time_s += elapsed
    run.cpu_time_s += time.process_time() - cpu
    run.data_s.append(ready - begin)
    run.last_step_s = ready - begin + elapsed
    run.steps += 1
    run.last_loss = loss
    if run.first_step_s is None:
        run.first_step_s, run.initial_loss = elapsed, loss
    elif len(index) == plan.batch_size:
        run.full_steps_s.append(elapsed)
    return loss


def _count_right(prediction: Tensor | None, targets: Tensor | None) -> tuple[int, int] | None:
    """(right, all) of classified values: classes along dimension 1, or along the last one (see ``compute_loss``)."""
    dimension = None if prediction is None or targets is None else class_dimension(prediction, targets)
    if prediction is None or targets is None or dimension is None:
        return None
    return int((prediction.argmax(dimension) == targets).sum()), targets.numel()


def _described(error: Exception, place: str) -> tuple[str, TrainPilotError]:
    """Status of the row and the error to raise; the message is kept, not the exception, which would hold tensors."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, UnsupportedError):
        return "unsupported", UnsupportedError(f"{place}: {error}")
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in _OUT_OF_MEMORY):
        return "oom", TrainingError(f"{place}: not enough memory: {message}")
    return "failed", TrainingError(f"{place} failed: {message}")
