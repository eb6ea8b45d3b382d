"""How long a running training still takes."""

from __future__ import annotations

from collections import deque
from statistics import median

from trainpilot.errors import UsageError

_WINDOW = 50  # a rate of the last steps: it follows a machine that becomes busy, and forgets a slow start


class RemainingTime:
    """Estimates the remaining time of a job from the steps of this session.

    Steps that an earlier session did count as done, but say nothing about the speed of this one; nor does time
    before the first step. The rate is the median over recent steps, so one disturbed step does not move it.

    Args:
        total_steps: Steps of the whole job.
        start_step: Steps that were done before this session.
        predicted_step_s: Used until the first step is done; None if unknown.

    Raises:
        UsageError: A count is below 0.
    """

    def __init__(self, total_steps: int, start_step: int = 0, predicted_step_s: float | None = None) -> None:
        if total_steps < 0 or start_step < 0:
            raise UsageError(f"steps must be at least 0, got {total_steps} in total and {start_step} done")
        self._total = total_steps
        self._done = start_step
        self._predicted_step_s = predicted_step_s
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self.session_s = 0.0

    def add(self, duration_s: float, steps: int = 1) -> None:
        """Record steps of this session.

        Args:
            duration_s: What they took together, in s, without preparation, validation or saving.
            steps: How many they were.

        Raises:
            UsageError: There is no step, or the duration is below 0.
        """
        if steps < 1 or not duration_s >= 0:
            raise UsageError(f"expected at least one step and a duration of at least 0 s, got {steps} and {duration_s}")
        self._recent.extend([duration_s / steps] * min(steps, _WINDOW))
        self._done += steps
        self.session_s += duration_s

    @property
    def steps_left(self) -> int:
        """Steps that are still to be done, never below 0."""
        return max(0, self._total - self._done)

    @property
    def already_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.steps_left == 0

    @property
    def step_s(self) -> float | None:
        """Recent time of one step in s, before the first one the predicted time, or None."""
        return median(self._recent) if self._recent else self._predicted_step_s

    def remaining_s(self, known_parts_s: float = 0.0) -> float | None:
        """Remaining time in s, or None if no step was done and none was predicted.

        Args:
            known_parts_s: What else is still to come: validation, saving.
        """
        if self.already_done:
            return 0.0
        rate = self.step_s
        return None if rate is None else self.steps_left * rate + max(0.0, known_parts_s)

    def __str__(self) -> str:
        if self.already_done:
            return "already done"
        seconds = self.remaining_s()
        return "unknown" if seconds is None else f"{seconds:.0f} s for {self.steps_left} steps"
