"""Real training runs: on the backend that was decided, recorded, and compared with what was predicted."""

from trainpilot.train_orchestrated.command import TrainOptions, format_result, main, run_training
from trainpilot.train_orchestrated.environment import TrainingEnvironment
from trainpilot.train_orchestrated.result import EpochResult, Progress, TrainingResult
from trainpilot.train_orchestrated.training import train

__all__ = [
    "EpochResult",
    "Progress",
    "TrainOptions",
    "TrainingEnvironment",
    "TrainingResult",
    "format_result",
    "main",
    "run_training",
    "train",
]
