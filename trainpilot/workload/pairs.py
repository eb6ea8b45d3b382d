"""Settings written as text: ``NAME=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainpilot.errors import UsageError


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` pairs; a value is an integer, a float, true or false, or else text.

    Raises:
        UsageError: A pair has no ``=``, or a name occurs twice.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise UsageError(f"--set {pair!r}: write NAME=VALUE, e.g. --set layers=3")
        if name in found:
            raise UsageError(f"--set {name}: given twice")
        found[name] = _value(text)
    return found


def _value(text: str) -> int | float | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
