"""Fitted predictors on disk: numbered folders per backend, and a pointer to the one in use.

``<folder>/<backend>/0001/``, ``0002/``, ... are never changed once written; ``<folder>/<backend>/active`` lists
the numbers that were put to use, the one in use last, and is replaced atomically.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from trainpilot.errors import ArtifactError, NoDataError, UsageError
from trainpilot.files import write_atomically
from trainpilot.predictors.artifact import CARD_FILE, load_predictor, save_predictor
from trainpilot.settings import load_settings

if TYPE_CHECKING:
    from trainpilot.predictors.predictor import Predictor

ACTIVE_FILE = "active"


def _home(backend: str, folder: Path | None) -> Path:
    return (load_settings().predictors_dir if folder is None else folder) / backend


def list_versions(backend: str, folder: Path | None = None) -> tuple[int, ...]:
    """Numbers of the stored predictors of a backend, oldest first."""
    home = _home(backend, folder)
    if not home.is_dir():
        return ()
    return tuple(sorted(int(entry.name) for entry in home.iterdir() if entry.name.isdigit() and entry.is_dir()))


def version_folder(backend: str, version: int, folder: Path | None = None) -> Path:
    """Folder of one stored predictor."""
    return _home(backend, folder) / f"{version:04d}"


def active_version(backend: str, folder: Path | None = None) -> int | None:
    """Number of the predictor in use, or None.

    Raises:
        ArtifactError: The pointer is damaged or points nowhere.
    """
    history = _history(backend, folder)
    return history[-1] if history else None


def _history(backend: str, folder: Path | None) -> list[int]:
    """Numbers that were put to use, in this order; the last one is in use."""
    path = _home(backend, folder) / ACTIVE_FILE
    if not path.exists():
        return []
    words = path.read_text(encoding="utf-8", errors="replace").split()
    if not words or not all(word.isdigit() for word in words):
        raise ArtifactError(f"{path} is damaged: it must hold numbers of predictors: run `trainpilot fit`")
    if int(words[-1]) not in list_versions(backend, folder):
        raise ArtifactError(f"{path} names predictor {words[-1]}, which is not stored: run `trainpilot fit`")
    return [int(word) for word in words]


def load_active(backend: str, folder: Path | None = None) -> Predictor | None:
    """Load the predictor in use; None if the backend has none.

    Raises:
        ArtifactError: It is damaged, foreign, or of another schema.
    """
    version = active_version(backend, folder)
    if version is None:
        return None
    path = version_folder(backend, version, folder)
    card = path / CARD_FILE
    return _load(path, card.stat().st_mtime_ns if card.exists() else 0, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load(path: Path, card_changed: int, folder_changed: int) -> Predictor:  # noqa: ARG001 (part of the cache key)
    return load_predictor(path)


def store_version(predictor: Predictor, folder: Path | None = None) -> int:
    """Write a predictor under the next free number, without putting it to use.

    Raises:
        ArtifactError: The folder cannot be written.
    """
    version = max(list_versions(predictor.backend, folder), default=0) + 1
    save_predictor(predictor, version_folder(predictor.backend, version, folder))
    return version


def activate(backend: str, version: int, folder: Path | None = None) -> None:
    """Put a stored predictor to use.

    Raises:
        UsageError: There is no such version.
        ArtifactError: The pointer cannot be written.
    """
    if version not in list_versions(backend, folder):
        known = ", ".join(str(number) for number in list_versions(backend, folder)) or "none"
        raise UsageError(f"backend {backend} has no predictor {version}; stored: {known}")
    try:
        history = _history(backend, folder)
    except ArtifactError:  # a damaged pointer is replaced: that is what its message asks for
        history = []
    _write_history(backend, [*history, version], folder)


def rollback(backend: str, folder: Path | None = None) -> int:
    """Put the predictor that was in use before back to use.

    Returns:
        Its number.

    Raises:
        NoDataError: There was none before.
        ArtifactError: The pointer is damaged or cannot be written.
    """
    history = _history(backend, folder)[:-1]
    stored = list_versions(backend, folder)
    while history and history[-1] not in stored:
        history.pop()
    if not history:
        raise NoDataError(f"backend {backend} has no earlier predictor to go back to")
    _write_history(backend, history, folder)
    return history[-1]


def _write_history(backend: str, history: list[int], folder: Path | None) -> None:
    path = _home(backend, folder) / ACTIVE_FILE
    try:
        write_atomically(path, "".join(f"{number}\n" for number in history).encode())
    except OSError as error:
        raise ArtifactError(f"{path} cannot be written: {error.strerror or error}") from error
