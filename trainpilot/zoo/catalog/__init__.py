"""Declarations of all models; importing them loads no torch."""

from trainpilot.zoo.catalog import convolutional, dense
from trainpilot.zoo.entry import ModelEntry

ENTRIES: tuple[ModelEntry, ...] = (
    *dense.ENTRIES,
    *convolutional.ENTRIES,
)

__all__ = ["ENTRIES"]
