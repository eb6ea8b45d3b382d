"""What a prediction says, and where each number comes from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Source = Literal["measured", "learned", "analytic", "rules", "unknown"]


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: Point estimate.
        low: Lower bound, or None where no valid interval is known.
        high: Upper bound, or None.
        level: Nominal coverage of the interval, or None.
    """

    value: float
    low: float | None = None
    high: float | None = None
    level: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"an estimate must be finite and not negative, got {self.value}")
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has two bounds")
        if self.low is not None and self.high is not None and not 0 <= self.low <= self.value <= self.high:
            raise ValueError(f"bounds out of order: {self.low}, {self.value}, {self.high}")

    def map(self, function: Callable[[float], float]) -> Estimate:
        """Apply an increasing function to the value and both bounds."""
        return Estimate(
            value=function(self.value),
            low=None if self.low is None else function(self.low),
            high=None if self.high is None else function(self.high),
            level=self.level,
        )


@dataclass(frozen=True)
class Prediction:
    """What training a workload on one backend will take.

    Attributes:
        backend: The backend.
        step_time_s: Time of one training step, or None if nothing is known.
        setup_time_s: Time before the first regular step, or None.
        epoch_time_s: Time of one epoch (training part), or None.
        total_time_s: Time of the whole plan, or None.
        peak_memory_bytes: Peak memory, or None.
        energy_j: Energy of the whole plan, or None where no meter ever measured it.
        source: Where the step time comes from.
        in_range: Whether the workload lies inside what the predictor was fitted on.
        notes: What was assumed, and what a reader should know.
    """

    backend: str
    step_time_s: Estimate | None
    setup_time_s: Estimate | None
    epoch_time_s: Estimate | None
    total_time_s: Estimate | None
    peak_memory_bytes: Estimate | None
    energy_j: Estimate | None
    source: Source
    in_range: bool
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        content = asdict(self)
        content["notes"] = list(self.notes)
        return content
