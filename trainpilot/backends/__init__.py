"""Backends: what can be probed, described, and runs training steps.

Importing the package loads no framework; each backend imports its own when it is used.
"""

from trainpilot.backends.base import (
    MEMORY_FORMATS,
    Backend,
    DeviceInfo,
    ExecutionSettings,
    TrainingSession,
    Usability,
)
from trainpilot.backends.registry import backend_names, candidate_backends, get_backend

__all__ = [
    "MEMORY_FORMATS",
    "Backend",
    "DeviceInfo",
    "ExecutionSettings",
    "TrainingSession",
    "Usability",
    "backend_names",
    "candidate_backends",
    "get_backend",
]
