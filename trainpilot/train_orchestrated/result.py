"""What a training run reports, while it runs and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainpilot.predictors import Estimate, Prediction
from trainpilot.selection import Selection


@dataclass(frozen=True)
class Progress:
    """Where a run is after a step.

    Attributes:
        epoch: Epoch that the step belongs to, from 1.
        epochs: Epochs of the plan.
        step: Steps done, all epochs together.
        steps: Steps of the plan.
        loss: Loss of the step.
        elapsed_s: Time since the first step began.
        remaining_s: Estimated time to the end, validation included.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    elapsed_s: float
    remaining_s: float


@dataclass(frozen=True)
class EpochResult:
    """One finished epoch.

    Attributes:
        loss: Mean loss over its samples, each taken when its step ran.
        accuracy: Share of the held-out samples that are classified right after it; None without classes.
        time_s: Its training steps, data included and validation not.
        validation_time_s: Its validation.
    """

    loss: float
    accuracy: float | None
    time_s: float
    validation_time_s: float


@dataclass(frozen=True)
class TrainingResult:
    """A training run. Times in s.

    Attributes:
        status: ``success``, or ``interrupted`` by Ctrl-C.
        backend: Where it ran.
        placement: Where the work really ran.
        message: The run in one line.
        params: Parameters of the model.
        execution_time_s: Setup, training and validation.
        setup_time_s: Building the model and bringing it to the device.
        first_step_s: Time of the first step.
        step_time_s: Median time of a full step after the first, or None if there was none.
        initial_loss: Loss of the first step, before anything was learned.
        loss: Mean loss of the last finished epoch; of the steps done where none was finished.
        accuracy: Held-out accuracy after the last finished epoch, or None.
        steps: Steps done.
        planned_steps: Steps of the plan.
        epochs: The finished epochs.
        prediction: What was predicted before, for this backend; its numbers are None where nothing was known.
        selection: How the backend was chosen; None if it was given.
        row_id: The row of the timing dataset.
        recorded_in: ``store``, or the path of the file that holds the row because the store could not take it.
        checkpoint: The file with the weights, if one was asked for.
        seed: Seed of the run.
        validation_size: Samples that were held out.
        warnings: What did not go as it should.
    """

    status: Literal["success", "interrupted"]
    backend: str
    placement: str
    message: str
    params: int
    execution_time_s: float
    setup_time_s: float
    first_step_s: float | None
    step_time_s: float | None
    initial_loss: float | None
    loss: float | None
    accuracy: float | None
    steps: int
    planned_steps: int
    epochs: tuple[EpochResult, ...]
    prediction: Prediction
    selection: Selection | None
    row_id: str
    recorded_in: str
    checkpoint: Path | None
    seed: int
    validation_size: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def predicted_time_s(self) -> float | None:
        """Predicted time of the whole plan, or None."""
        total = self.prediction.total_time_s
        return None if total is None else total.value

    @property
    def warm_up_time_s(self) -> float:
        """Setup, and what the first step took longer than the median of the others: what happens once.

        Predicted setup times mean the same, but were measured in processes that had trained before, where libraries
        are loaded already; so they are told apart from the steps and not compared with a first run.
        """
        if self.first_step_s is None or self.step_time_s is None:
            return self.setup_time_s
        return self.setup_time_s + max(0.0, self.first_step_s - self.step_time_s)

    @property
    def training_time_s(self) -> float:
        """Steps and validation: the time without ``warm_up_time_s``."""
        return max(0.0, self.execution_time_s - self.warm_up_time_s)

    @property
    def predicted_training_time(self) -> Estimate | None:
        """Predicted time of the steps and validation of the whole plan, in s: the total without the setup, or None."""
        total, setup = self.prediction.total_time_s, self.prediction.setup_time_s
        if total is None or setup is None:
            return total
        value = max(0.0, total.value - setup.value)
        if total.low is None or total.high is None or setup.low is None or setup.high is None:
            return Estimate(value)
        # The bounds of a total are the sums of those of its parts.
        low, high = max(0.0, total.low - setup.low), total.high - setup.high
        return Estimate(value, min(low, value), max(high, value), total.level)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, with the keys of the documented API first."""
        predicted = self.predicted_training_time
        return {
            "status": self.status,
            "backend": self.backend,
            "execution_time": self.execution_time_s,
            "message": self.message,
            "params": self.params,
            "initial_loss": self.initial_loss,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "steps": self.steps,
            "planned_steps": self.planned_steps,
            "epochs": len(self.epochs),
            "predicted_time_s": self.predicted_time_s,
            "training_time_s": self.training_time_s,
            "predicted_training_time_s": None if predicted is None else predicted.value,
            "warm_up_time_s": self.warm_up_time_s,
            "source": self.prediction.source,
            "row_id": self.row_id,
            "recorded_in": self.recorded_in,
            "placement": self.placement,
            "setup_time_s": self.setup_time_s,
            "first_step_s": self.first_step_s,
            "step_time_s": self.step_time_s,
            "epoch_losses": [epoch.loss for epoch in self.epochs],
            "epoch_accuracies": [epoch.accuracy for epoch in self.epochs],
            "prediction": self.prediction.to_dict(),
            "selection": None if self.selection is None else self.selection.to_dict(),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "seed": self.seed,
            "validation_size": self.validation_size,
            "warnings": list(self.warnings),
        }
