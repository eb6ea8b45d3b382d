"""Space-filling designs: points spread over ranges and choices, the same for the same seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole numbers if both bounds are.

    Attributes:
        low: Least value.
        high: Largest value.
        log: Spread the points evenly over the logarithm.
        multiple: Round whole numbers to a multiple of this.
    """

    low: int | float
    high: int | float
    log: bool = False
    multiple: int = 1

    def at(self, position: float) -> int | float:
        """The value at a position in [0, 1)."""
        if self.log:
            value = math.exp(math.log(self.low) + position * math.log(self.high / self.low))
        else:
            value = self.low + (self.high - self.low) * position
        if isinstance(self.low, float) or isinstance(self.high, float):
            return value
        rounded = round(value / self.multiple) * self.multiple
        least = math.ceil(self.low / self.multiple) * self.multiple
        most = math.floor(self.high / self.multiple) * self.multiple
        return min(max(rounded, least), most)


@dataclass(frozen=True)
class Choice:
    """One of some values, each equally often."""

    values: tuple[Any, ...]

    def at(self, position: float) -> Any:
        """The value at a position in [0, 1)."""
        return self.values[min(int(position * len(self.values)), len(self.values) - 1)]


@dataclass(frozen=True)
class Derived:
    """A whole number that follows another setting, e.g. four times the width.

    Attributes:
        of: Name of the other setting.
        times: Factor.
    """

    of: str
    times: float

    def at(self, value: int) -> int:
        """The number for a value of the other setting, at least 1."""
        return max(1, round(value * self.times))


def space_filling(dimensions: Mapping[str, Range | Choice], count: int, seed: Sequence[Any]) -> list[dict[str, Any]]:
    """Spread ``count`` points over the dimensions with a scrambled Sobol sequence.

    Args:
        dimensions: Ranges and choices by name.
        count: Number of points; the first n points of a longer design are those of a shorter one.
        seed: Anything with a stable text; decides the scrambling.

    Returns:
        One value per dimension for each point.
    """
    if not dimensions:
        return [{}] * min(count, 1)
    from scipy.stats import qmc

    number = int.from_bytes(hashlib.sha256(repr(list(seed)).encode()).digest()[:4], "big")
    sequence = qmc.Sobol(len(dimensions), scramble=True, seed=number)
    # Sobol points are balanced in powers of two, so that many are drawn and the first ones taken.
    points = sequence.random_base2(max(0, math.ceil(math.log2(count))))[:count]
    return [
        {
            name: dimension.at(float(position))
            for (name, dimension), position in zip(dimensions.items(), point, strict=True)
        }
        for point in points
    ]
