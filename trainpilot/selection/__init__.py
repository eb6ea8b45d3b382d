"""Deciding where to train: the usable backends, what each would take, and how sure the choice is."""

from trainpilot.selection.choice import OBJECTIVES, Limits, Selection, choose
from trainpilot.selection.load import adjust_for_load, interference_factor
from trainpilot.selection.machine import select, usable_backend
from trainpilot.selection.probability import probability_smallest

__all__ = [
    "OBJECTIVES",
    "Limits",
    "Selection",
    "adjust_for_load",
    "choose",
    "interference_factor",
    "probability_smallest",
    "select",
    "usable_backend",
]
