"""A clock that moves only when it is told to."""

from __future__ import annotations


class VirtualClock:
    """Gives seconds when called, like ``time.perf_counter``.

    Args:
        start_s: The first reading.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def __call__(self) -> float:
        """Seconds now."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._now_s += seconds
