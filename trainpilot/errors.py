"""Every error that TrainPilot raises on purpose.

The tree, with the exit code that the command line gives to each:

    TrainPilotError                     1
    ├── UsageError (ValueError)         2   a name, setting or number that cannot be right
    │   └── UnknownNameError            2   a name that does not exist; carries the nearest valid ones
    ├── SettingsError (ValueError)      2   a configuration file or environment variable is wrong
    ├── DataError (ValueError)          1   training data that cannot be used
    ├── ModelError                      1   a model that cannot be built, run or profiled
    │   ├── LossRequiredError (ValueError)  no loss can be inferred
    │   └── NothingToTrainError         1   no parameter requires a gradient
    ├── BackendError (RuntimeError)     1
    │   ├── BackendUnusableError        1   visible or named, but it cannot run here
    │   └── UnsupportedError            1   an operator, dtype or setting that the backend does not have
    ├── MeasurementError (RuntimeError) 1
    ├── StoreError                      1
    │   ├── StoreCorruptError           1
    │   └── StoreSchemaError            1
    ├── PredictorError                  1
    │   ├── ArtifactError               1   a predictor folder that must not be used
    │   ├── FeatureError (ValueError)   1   features or labels that are no finite numbers of the expected shape
    │   ├── NotFittedError (ValueError, AttributeError)
    │   └── NoDataError (LookupError)   1   nothing is known for what was asked
    ├── ObservationError (ValueError)   1   hardware state missing, incomplete, stale or out of range
    └── TrainingError (RuntimeError)    1
        └── NonFiniteLossError          1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

_MOST_LISTED = 40  # names in one message; what comes first is what most people look for


class TrainPilotError(Exception):
    """Base of all errors that are raised on purpose; its text is one line for a person."""

    exit_code: ClassVar[int] = 1


class UsageError(TrainPilotError, ValueError):
    """A name, setting or number that cannot be right."""

    exit_code: ClassVar[int] = 2


class UnknownNameError(UsageError):
    """A name that does not exist.

    Args:
        kind: What the name stands for, e.g. ``"model"``.
        name: The name that was given.
        valid: All names that would have been right.
    """

    def __init__(self, kind: str, name: object, valid: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.valid = tuple(valid)
        by_lower = {option.lower(): option for option in self.valid}
        close = difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.5)
        self.nearest = tuple(by_lower[option] for option in close)
        hint = f"did you mean {' or '.join(self.nearest)}? " if self.nearest else ""
        known = ", ".join(self.valid[:_MOST_LISTED]) or "none"
        if len(self.valid) > _MOST_LISTED:
            known += f", ... ({len(self.valid)} in all)"
        super().__init__(f"unknown {kind} {str(name)!r}: {hint}valid: {known}")


class SettingsError(TrainPilotError, ValueError):
    """A configuration file or environment variable is wrong."""

    exit_code: ClassVar[int] = 2


class DataError(TrainPilotError, ValueError):
    """Training data that cannot be used."""


class ModelError(TrainPilotError):
    """A model that cannot be built, run or profiled."""


class LossRequiredError(ModelError, ValueError):
    """No loss can be inferred from the outputs and targets."""


class NothingToTrainError(ModelError):
    """No parameter of the model requires a gradient."""


class BackendError(TrainPilotError, RuntimeError):
    """A backend failed or does not fit the request."""


class BackendUnusableError(BackendError):
    """The backend is visible or was named, but it cannot run here."""


class UnsupportedError(BackendError):
    """The backend lacks an operator, dtype or setting that the workload needs."""


class MeasurementError(TrainPilotError, RuntimeError):
    """A measurement could not be taken or cannot be trusted."""


class StoreError(TrainPilotError):
    """The timing dataset cannot be read or written."""


class StoreCorruptError(StoreError):
    """The file of the timing dataset is damaged."""


class StoreSchemaError(StoreError):
    """The timing dataset has a schema that this version cannot use."""


class PredictorError(TrainPilotError):
    """A predictor cannot be fitted or used."""


class ArtifactError(PredictorError):
    """A predictor folder that must not be used: damaged, foreign, or of another schema."""


class FeatureError(PredictorError, ValueError):
    """Features or labels of an estimator that are no finite numbers of the expected names and shape."""


class NotFittedError(PredictorError, ValueError, AttributeError):
    """The estimator was asked before it was fitted."""


class NoDataError(PredictorError, LookupError):
    """Nothing is known for what was asked; the text names the command that would change that."""


class ObservationError(TrainPilotError, ValueError):
    """A hardware state is missing, incomplete, stale or out of range."""


class TrainingError(TrainPilotError, RuntimeError):
    """Training could not be carried out."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""
