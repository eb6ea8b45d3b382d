"""The documented module and program for training. The code is in ``trainpilot.train_orchestrated``."""

import sys

from trainpilot.train_orchestrated import TrainingEnvironment, TrainingResult, main, train

__all__ = ["TrainingEnvironment", "TrainingResult", "main", "train"]

if __name__ == "__main__":
    sys.exit(main())
