"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest

from trainpilot.predictors import Estimate
from trainpilot.report.format import byte_size, count, duration, with_interval


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.5e-9, "2.50 ns"),
        (0.0123, "12.3 ms"),
        (0.9999, "1000 ms"),
        (1.0, "1.00 s"),
        (59.96, "60.0 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (3599.0, "1 h 0 min"),
        (4000.0, "1 h 7 min"),
        (200_000.0, "2.3 days"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (123_456, "121 KiB"), (2**30, "1.00 GiB"), (None, "unknown")]
)
def test_byte_size(size: float | None, text: str) -> None:
    assert byte_size(size) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, "FLOP", "0 FLOP"),
        (999, "", "999"),
        (3_200_000, "FLOP", "3.20 MFLOP"),
        (999_999, "", "1.00 M"),
        (None, "", "unknown"),
    ],
)
def test_count(number: float | None, unit: str, text: str) -> None:
    assert count(number, unit) == text


def test_interval_is_shown_only_where_there_is_one() -> None:
    assert with_interval(Estimate(0.01)) == "10.0 ms"
    assert with_interval(Estimate(0.01, 0.008, 0.0125, 0.9)) == "10.0 ms (8.00 ms to 12.5 ms)"
    assert with_interval(None) == "unknown"
    assert with_interval(Estimate(1024.0), byte_size) == "1.00 KiB"
