"""From the time of one step to the time of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainpilot.errors import UsageError
from trainpilot.predictors.prediction import Estimate
from trainpilot.workload import TrainingPlan


@dataclass(frozen=True)
class StepTimes:
    """What the parts of a plan take, each once, in s.

    Attributes:
        micro_batch: Forward, loss and backward of a full micro-batch.
        last_micro_batch: The same for the partial micro-batch at the end of an epoch; None if there is none.
        optimizer: One optimizer step.
        validation_batch: One forward pass of a validation batch; None if there is no validation.
        setup: Everything before the first regular step; None if unknown.
    """

    micro_batch: Estimate
    last_micro_batch: Estimate | None
    optimizer: Estimate
    validation_batch: Estimate | None = None
    setup: Estimate | None = None


@dataclass(frozen=True)
class PlanTimes:
    """What a plan takes, by part, in s.

    Attributes:
        setup: Once, before the first step; None if unknown, and then not in ``total``.
        epoch: Training part of one epoch.
        validation: Validation after each epoch; None if there is none.
        total: Everything.
        epochs: Number of epochs.
    """

    setup: Estimate | None
    epoch: Estimate
    validation: Estimate | None
    total: Estimate
    epochs: int

    def trials(self, count: int, shared_setup_s: float = 0.0) -> float:
        """Time of ``count`` runs of the plan that share a part of the setup, without that shared part, in s.

        Raises:
            UsageError: ``count`` is below 1, or more is shared than the setup takes.
        """
        setup = 0.0 if self.setup is None else self.setup.value
        if count < 1:
            raise UsageError(f"trials must be at least 1, got {count}")
        if not 0 <= shared_setup_s <= setup:
            raise UsageError(f"shared setup must be between 0 and the setup time of {setup:g} s, got {shared_setup_s}")
        return count * (self.total.value - shared_setup_s)


def plan_times(plan: TrainingPlan, times: StepTimes) -> PlanTimes:
    """Add up a plan.

    An epoch is its full micro-batches, the partial one, and an optimizer step after every ``accumulate`` of them
    (and for a rest). Bounds are added up as they are: the errors of one predictor have one sign.

    Args:
        plan: The plan.
        times: What each part takes.

    Raises:
        UsageError: The plan has a partial batch or validation for which no time is given.
    """
    if plan.last_batch_size and times.last_micro_batch is None:
        raise UsageError(f"the plan has a last batch of {plan.last_batch_size} samples, but no time for it is given")
    if plan.validation_batches and times.validation_batch is None:
        raise UsageError(f"the plan has {plan.validation_batches} validation batches, but no time for them is given")
    parts = [(plan.full_batches, times.micro_batch), (plan.optimizer_steps_per_epoch, times.optimizer)]
    if plan.last_batch_size and times.last_micro_batch is not None:
        parts.append((1, times.last_micro_batch))
    epoch = weighted_sum(parts)
    validation = None
    if plan.validation_batches and times.validation_batch is not None:
        validation = weighted_sum([(plan.validation_batches, times.validation_batch)])
    everything = [(plan.epochs, epoch)]
    if validation is not None:
        everything.append((plan.epochs, validation))
    if times.setup is not None:
        everything.append((1, times.setup))
    return PlanTimes(times.setup, epoch, validation, weighted_sum(everything), plan.epochs)


def weighted_sum(parts: Sequence[tuple[int, Estimate]]) -> Estimate:
    """Sum of count times estimate; it has bounds if all parts that count have bounds, of the lowest level."""
    used = [(count, part) for count, part in parts if count]

    def total(bound: Callable[[Estimate], float | None]) -> float | None:
        values = [bound(part) for _, part in used]
        if any(value is None for value in values):
            return None
        return sum(count * value for (count, _), value in zip(used, values, strict=True) if value is not None)

    value = sum(count * part.value for count, part in used)
    low, high = total(lambda part: part.low), total(lambda part: part.high)
    if low is None or high is None:
        return Estimate(value)
    levels = [part.level for _, part in used if part.level is not None]
    # Sums of floats need not keep the order of their parts to the last bit.
    return Estimate(value, min(low, value), max(high, value), min(levels, default=None))
