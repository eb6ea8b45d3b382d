"""Numbers as a person reads them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainpilot.predictors import Estimate

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float | None) -> str:
    """``0.0123`` → ``12.3 ms``; ``4000`` → ``1 h 7 min``; None → ``unknown``."""
    if seconds is None or math.isnan(seconds):
        return "unknown"
    if seconds >= 119.5:
        minutes = round(seconds / 60)
        if minutes < 60:
            return f"{minutes} min"
        if minutes < 48 * 60:
            return f"{minutes // 60} h {minutes % 60} min"
        return f"{minutes / 1440:.1f} days"
    for size, unit in _TIME_UNITS:
        if seconds >= size:
            return f"{_three_digits(seconds / size)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.1e} s"


def byte_size(count: float | None) -> str:
    """``123456`` → ``121 KiB``; None → ``unknown``."""
    if count is None or math.isnan(count):
        return "unknown"
    size = float(count)
    for unit in _BYTE_UNITS:
        if size < 1023.5 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} B" if unit == "B" else f"{_three_digits(size)} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def count(number: float | None, unit: str = "") -> str:
    """``3_200_000`` with unit ``FLOP`` → ``3.20 MFLOP``; None → ``unknown``."""
    if number is None or math.isnan(number):
        return "unknown"
    for size, prefix in _COUNT_UNITS:
        if abs(number) >= size * 0.9995:
            return f"{_three_digits(number / size)} {prefix}{unit}"
    return f"{number:.0f}{' ' + unit if unit else ''}"


def with_interval(estimate: Estimate | None, shown: Callable[[float], str] = duration) -> str:
    """``12.3 ms (10.1 ms to 15.0 ms)``, or without bounds where no interval is known."""
    if estimate is None:
        return "unknown"
    if estimate.low is None or estimate.high is None:
        return shown(estimate.value)
    return f"{shown(estimate.value)} ({shown(estimate.low)} to {shown(estimate.high)})"


def _three_digits(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"
