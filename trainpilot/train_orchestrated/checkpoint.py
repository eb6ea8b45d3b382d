"""Saving weights: atomic, and as weights only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainpilot.errors import TrainingError
from trainpilot.files import replacing


def check_writable(path: Path) -> None:
    """Refuse a place where no checkpoint can be written, before anything is trained.

    Raises:
        TrainingError: It is a folder, or its folder does not exist or cannot be written to.
    """
    if path.is_dir():
        raise TrainingError(f"checkpoint {path}: it is a folder; give the name of a file")
    try:
        handle, probe = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise TrainingError(f"checkpoint {path}: cannot be written: {error.strerror or error}") from error
    os.close(handle)
    Path(probe).unlink()


def save_weights(path: Path, weights: Mapping[str, Any]) -> None:
    """Write a state dict that ``torch.load(path, weights_only=True)`` reads; complete or not at all.

    Raises:
        TrainingError: The file cannot be written.
    """
    import torch

    try:
        with replacing(path) as file:
            torch.save(dict(weights), file)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise TrainingError(f"checkpoint {path}: cannot be written: {' '.join(str(error).split())}") from error
