"""The documented training environment: arrays and a model configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainpilot import zoo
from trainpilot.errors import UsageError
from trainpilot.train_orchestrated.result import TrainingResult
from trainpilot.train_orchestrated.seed import check_seed
from trainpilot.train_orchestrated.training import train
from trainpilot.workload import Workload
from trainpilot.zoo.data import settings_for_data, training_data


class TrainingEnvironment:
    """Training data and the model that is trained on it.

    The model gets the image size, channels and classes of the data. Images may lack the channel axis, have it last,
    or be flat.

    Args:
        X_train: Samples, e.g. floats of shape (100, 28, 28).
        y_train: Class labels of shape (n,), whole numbers from 0.
        model_config: ``name`` of a zoo model, optionally ``layers``, ``has_conv``, ``has_rnn`` and its settings.
        X_val: Held-out samples; without them a fifth of each class is held out.
        y_val: Their labels.
        epochs: Passes over the data.
        batch_size: Samples per step.
        learning_rate: Overrides the usual rate of the optimizer, AdamW.
        seed: Decides the order of the samples and which are held out.
        checkpoint: File for the weights of each run.

    Raises:
        DataError: The arrays cannot be used: lengths differ, values are not finite, labels are no classes, or the
            shape does not fit the model.
        UsageError: The configuration names no model, contradicts it or the data, or a number is wrong.
    """

    def __init__(
        self,
        X_train: np.ndarray,  # noqa: N803  documented name
        y_train: np.ndarray,
        model_config: Mapping[str, Any],
        *,
        X_val: np.ndarray | None = None,  # noqa: N803
        y_val: np.ndarray | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        learning_rate: float | None = None,
        seed: int = 0,
        checkpoint: str | Path | None = None,
    ) -> None:
        seed = check_seed(seed)
        name, settings = zoo.from_model_config(model_config)
        self.data = training_data(X_train, y_train, X_val, y_val, seed=seed)
        self.workload = Workload(
            name,
            settings=settings_for_data(name, settings, self.data),
            batch_size=batch_size,
            dataset_size=len(self.data.y_train),
            epochs=epochs,
            validation_size=len(self.data.y_val),
            learning_rate=learning_rate,
        )
        self._seed = seed
        self._checkpoint = checkpoint

    def execute_training(self, backend: str, workload_profile: Mapping[str, Any]) -> dict[str, Any]:
        """Train the model from its initial weights.

        Args:
            backend: A backend, or ``auto`` for the best usable one.
            workload_profile: What the decision was based on. Training always uses the environment's own model; a
                profile with another number of parameters is noted in ``warnings``.

        Returns:
            A dict with ``status`` (``success``, or ``interrupted`` by Ctrl-C), ``backend``, ``execution_time`` (s),
            ``message``, and everything else that ``TrainingResult.to_dict`` gives, ``initial_loss``, ``loss``,
            ``accuracy``, ``steps``, ``epochs``, ``predicted_time_s``, ``source`` and ``row_id`` among it.

        Raises:
            UnknownNameError: No backend has that name.
            BackendUnusableError: The backend cannot be used here; another one is never put in its place.
            NonFiniteLossError: The loss became NaN or infinite.
            TrainingError: A step failed, or the checkpoint cannot be written.
        """
        if not isinstance(workload_profile, Mapping):
            raise UsageError(f"workload_profile must be a dict, got {type(workload_profile).__name__}")
        result = self.train(backend)
        content = result.to_dict()
        described, trained = workload_profile.get("params"), result.params
        if described is not None and described != trained:
            note = f"the profile describes a model of {described} parameters, but the one trained has {trained}"
            content["warnings"] = [*content["warnings"], note]
        return content

    def train(self, backend: str = "auto") -> TrainingResult:
        """Train as ``execute_training`` does, and return the result itself."""
        return train(self.workload, self.data, backend, seed=self._seed, checkpoint=self._checkpoint)
