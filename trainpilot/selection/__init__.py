"""Deciding where to train: the usable backends, what each would take, and how sure the choice is."""

from trainpilot.selection.choice import OBJECTIVES, Limits, Selection, choose, is_known, unknown_prediction
from trainpilot.selection.load import LOAD_INTERVAL_S, adjust_for_load, interference_factor
from trainpilot.selection.machine import check_threads, predict_under_load, select, usable_backend
from trainpilot.selection.probability import probability_smallest

__all__ = [
    "LOAD_INTERVAL_S",
    "OBJECTIVES",
    "Limits",
    "Selection",
    "adjust_for_load",
    "check_threads",
    "choose",
    "interference_factor",
    "is_known",
    "predict_under_load",
    "probability_smallest",
    "select",
    "unknown_prediction",
    "usable_backend",
]
