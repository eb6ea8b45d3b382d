"""Clocks and steps that cost no time, so that the timing protocol is tested without depending on the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable


class FakeClock:
    """A clock that steps advance; ``resolution_s`` rounds its readings down to ticks."""

    def __init__(self, resolution_s: float = 0.0) -> None:
        self.now = 100.0
        self.resolution_s = resolution_s

    def __call__(self) -> float:
        if not self.resolution_s:
            return self.now
        return math.floor(self.now / self.resolution_s) * self.resolution_s

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def step(self, seconds: Iterable[float], rest: float) -> Callable[[], None]:
        """A step that takes each of ``seconds`` in turn, then ``rest`` for ever."""
        left = iter(seconds)

        def run() -> None:
            self.advance(next(left, rest))

        return run


def nothing() -> None:
    """Synchronise with a device that is never late."""
