"""Predictors: additive model, boosted correction, intervals, and what they are fitted on.

Importing the package loads neither torch nor xgboost; each name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainpilot.predictors.prediction import Estimate, Prediction

if TYPE_CHECKING:
    from trainpilot.predictors.artifact import load_predictor, read_card, save_predictor
    from trainpilot.predictors.evaluation import evaluate
    from trainpilot.predictors.fitting import BackendFit, FitReport, fit, fit_reference
    from trainpilot.predictors.predictor import Predictor
    from trainpilot.predictors.registry import (
        activate,
        active_version,
        list_versions,
        load_active,
        rollback,
        store_version,
        version_folder,
    )
    from trainpilot.predictors.remaining import RemainingTime
    from trainpilot.predictors.service import predict
    from trainpilot.predictors.totals import PlanTimes, StepTimes, plan_times

_HOMES = {
    "BackendFit": "fitting",
    "FitReport": "fitting",
    "PlanTimes": "totals",
    "Predictor": "predictor",
    "RemainingTime": "remaining",
    "StepTimes": "totals",
    "activate": "registry",
    "active_version": "registry",
    "evaluate": "evaluation",
    "fit": "fitting",
    "fit_reference": "fitting",
    "list_versions": "registry",
    "load_active": "registry",
    "load_predictor": "artifact",
    "plan_times": "totals",
    "predict": "service",
    "read_card": "artifact",
    "rollback": "registry",
    "save_predictor": "artifact",
    "store_version": "registry",
    "version_folder": "registry",
}

__all__ = [
    "BackendFit",
    "Estimate",
    "FitReport",
    "PlanTimes",
    "Prediction",
    "Predictor",
    "RemainingTime",
    "StepTimes",
    "activate",
    "active_version",
    "evaluate",
    "fit",
    "fit_reference",
    "list_versions",
    "load_active",
    "load_predictor",
    "plan_times",
    "predict",
    "read_card",
    "rollback",
    "save_predictor",
    "store_version",
    "version_folder",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
