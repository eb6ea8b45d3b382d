"""The arithmetic of a training plan: batches, optimizer steps and epochs."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from trainpilot.errors import UsageError


@dataclass(frozen=True)
class TrainingPlan:
    """How often which step runs.

    A *micro-batch* is one forward and backward pass; an *optimizer step* follows every ``accumulate`` of them
    and once more for a rest at the end of the epoch, as in the usual training loop.

    Attributes:
        dataset_size: Number of training samples.
        batch_size: Samples in a full micro-batch.
        epochs: Passes over the data.
        accumulate: Micro-batches per optimizer step.
        drop_last: Leave out the last, partial micro-batch.
        validation_size: Samples evaluated (forward only) after each epoch.

    Raises:
        UsageError: A count is below its smallest sensible value.
    """

    dataset_size: int
    batch_size: int
    epochs: int = 1
    accumulate: int = 1
    drop_last: bool = False
    validation_size: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("dataset_size", 1),
            ("batch_size", 1),
            ("epochs", 1),
            ("accumulate", 1),
            ("validation_size", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise UsageError(f"{name} must be a whole number of at least {least}, got {value!r}")
            object.__setattr__(self, name, operator.index(value))  # also numpy's whole numbers
        if self.drop_last and self.batch_size > self.dataset_size:
            raise UsageError(
                f"batch_size {self.batch_size} is larger than the {self.dataset_size} samples and drop_last leaves "
                f"no batch at all: use a batch size of at most {self.dataset_size} or keep the last batch"
            )

    @property
    def full_batches(self) -> int:
        """Micro-batches of ``batch_size`` samples per epoch."""
        return self.dataset_size // self.batch_size

    @property
    def last_batch_size(self) -> int:
        """Samples in the partial micro-batch at the end of an epoch; 0 if there is none."""
        return 0 if self.drop_last else self.dataset_size % self.batch_size

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches per epoch, the partial one included."""
        return self.full_batches + (self.last_batch_size > 0)

    @property
    def optimizer_steps_per_epoch(self) -> int:
        """Optimizer steps per epoch; a rest of fewer than ``accumulate`` micro-batches still takes a step."""
        return -(-self.batches_per_epoch // self.accumulate)

    @property
    def steps(self) -> int:
        """Micro-batches of the whole run."""
        return self.batches_per_epoch * self.epochs

    @property
    def validation_batches(self) -> int:
        """Forward-only batches after each epoch."""
        return -(-self.validation_size // self.batch_size)
