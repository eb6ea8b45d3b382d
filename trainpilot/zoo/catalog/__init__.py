"""Declarations of all models; importing them loads no torch."""

from trainpilot.zoo.catalog import convolutional, dense, operators, sequential, transformers
from trainpilot.zoo.entry import ModelEntry

ENTRIES: tuple[ModelEntry, ...] = (
    *dense.ENTRIES,
    *convolutional.ENTRIES,
    *transformers.ENTRIES,
    *sequential.ENTRIES,
    *operators.ENTRIES,
)

__all__ = ["ENTRIES"]
