"""The reference predictors that come with the library: fitted on the reference dataset, one folder per backend."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from trainpilot.predictors.artifact import CARD_FILE, load_predictor
from trainpilot.settings import load_settings

if TYPE_CHECKING:
    from trainpilot.predictors.predictor import Predictor

# In a checkout they lie beside the package; a wheel carries them inside.
_FOLDERS = (Path(__file__).parents[2] / "models", Path(__file__).parent / "models")


def reference_folder(backend: str) -> Path:
    """Folder of the reference predictor of a backend; it need not exist."""
    own = load_settings().reference_dir
    folders = _FOLDERS if own is None else (own,)
    return next((folder / backend for folder in folders if (folder / backend).is_dir()), folders[0] / backend)


def load_reference(backend: str) -> Predictor | None:
    """Load the reference predictor of a backend; None if none is shipped.

    Raises:
        ArtifactError: It is damaged.
    """
    folder = reference_folder(backend)
    return _load(folder, (folder / CARD_FILE).stat().st_mtime_ns) if (folder / CARD_FILE).is_file() else None


@functools.lru_cache(maxsize=4)
def _load(folder: Path, changed: int) -> Predictor:  # noqa: ARG001 (part of the cache key)
    return load_predictor(folder)
