"""Deciding where to train: the usable backends, what each would take, and how sure the choice is."""

from trainpilot.selection.choice import OBJECTIVES, Limits, Selection, choose, is_known, unknown_prediction
from trainpilot.selection.load import adjust_for_load, interference_factor
from trainpilot.selection.machine import predict_under_load, select, usable_backend
from trainpilot.selection.probability import probability_smallest

__all__ = [
    "OBJECTIVES",
    "Limits",
    "Selection",
    "adjust_for_load",
    "choose",
    "interference_factor",
    "is_known",
    "predict_under_load",
    "probability_smallest",
    "select",
    "unknown_prediction",
    "usable_backend",
]
