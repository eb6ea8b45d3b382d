"""All models of the zoo by name."""

from __future__ import annotations

from functools import cache

from trainpilot.errors import UnknownNameError
from trainpilot.zoo.catalog import ENTRIES
from trainpilot.zoo.entry import ModelEntry


@cache
def _by_name() -> dict[str, ModelEntry]:
    found: dict[str, ModelEntry] = {}
    for entry in ENTRIES:
        if entry.name in found:
            raise ValueError(f"the zoo has two models called {entry.name!r}")
        found[entry.name] = entry
    return found


def names() -> tuple[str, ...]:
    """Names of all models, in the order of their families."""
    return tuple(_by_name())


def families() -> tuple[str, ...]:
    """Names of all families, each once."""
    return tuple(dict.fromkeys(entry.family for entry in _by_name().values()))


def get(name: str) -> ModelEntry:
    """Look up a model.

    Raises:
        UnknownNameError: There is no such model; the nearest names are offered.
    """
    entry = _by_name().get(name) if isinstance(name, str) else None
    if entry is None:
        raise UnknownNameError("model", name, _by_name())
    return entry
