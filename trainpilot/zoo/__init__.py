"""Registered models and training data; importing the package loads no torch."""

from trainpilot.zoo.config import from_model_config
from trainpilot.zoo.entry import Input, ModelEntry, Setting, Target
from trainpilot.zoo.registry import families, get, names

__all__ = [
    "Input",
    "ModelEntry",
    "Setting",
    "Target",
    "families",
    "from_model_config",
    "get",
    "names",
]
