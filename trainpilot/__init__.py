"""TrainPilot: how long will a training run take on each backend of this machine, and where should it run?

Importing the package loads neither torch nor xgboost; each name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from trainpilot.backends import ExecutionSettings
    from trainpilot.hardware_orchestrator import HardwareOrchestrator
    from trainpilot.predictors import Estimate, Prediction, fit, predict
    from trainpilot.profiling import WorkloadProfile, profile  # also a submodule
    from trainpilot.selection import Selection, select
    from trainpilot.store import benchmark
    from trainpilot.train_orchestrated import TrainingEnvironment, TrainingResult, train
    from trainpilot.workload import InputSpec, ModelInputs, Workload

_HOMES = {
    "Estimate": "trainpilot.predictors",
    "ExecutionSettings": "trainpilot.backends",
    "HardwareOrchestrator": "trainpilot.hardware_orchestrator",
    "InputSpec": "trainpilot.workload",
    "ModelInputs": "trainpilot.workload",
    "Prediction": "trainpilot.predictors",
    "Selection": "trainpilot.selection",
    "TrainingEnvironment": "trainpilot.train_orchestrated",
    "TrainingResult": "trainpilot.train_orchestrated",
    "Workload": "trainpilot.workload",
    "WorkloadProfile": "trainpilot.profiling",
    "benchmark": "trainpilot.store",
    "fit": "trainpilot.predictors",
    "predict": "trainpilot.predictors",
    "profile": "trainpilot.profiling",
    "select": "trainpilot.selection",
    "train": "trainpilot.train_orchestrated",
}

__all__ = [
    "Estimate",
    "ExecutionSettings",
    "HardwareOrchestrator",
    "InputSpec",
    "ModelInputs",
    "Prediction",
    "Selection",
    "TrainingEnvironment",
    "TrainingResult",
    "Workload",
    "WorkloadProfile",
    "__version__",
    "benchmark",
    "fit",
    "predict",
    "profile",
    "select",
    "train",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trainpilot' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
