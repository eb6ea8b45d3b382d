"""The Apple Neural Engine through Core ML."""

from trainpilot.backends.ane.backend import AneBackend

__all__ = ["AneBackend"]
