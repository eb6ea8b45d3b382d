"""Sweep files: TOML, checked at the boundary."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from trainpilot.benchmarking.sampling import Choice, Derived, Range
from trainpilot.benchmarking.timing import QUANTILES, TimingLimits

# More than a machine measures in a year; a file that asks for more is mistaken, and would only fill the memory.
MOST_CONFIGURATIONS = 1_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False)


class _RangeTable(_Strict):
    low: int | float
    high: int | float
    log: bool = False
    multiple: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> _RangeTable:
        if not self.low < self.high:
            raise ValueError(f"low {self.low} must be less than high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError("a range on a logarithmic scale must start above 0")
        if self.high // self.multiple < -(-self.low // self.multiple):
            raise ValueError(f"there is no multiple of {self.multiple} between {self.low} and {self.high}")
        return self


class _DerivedTable(_Strict):
    of: str
    times: float = Field(gt=0)


class _ChoiceTable(_Strict):
    any: list[Any] = Field(min_length=1)


Dimension = Range | Choice | Derived | tuple[Any, ...]


def _dimension(value: Any) -> Dimension:
    """A value or list is crossed with everything else; a table is sampled."""
    if isinstance(value, dict):
        if "any" in value:
            return Choice(tuple(_ChoiceTable.model_validate(value).any))
        if "of" in value:
            derived = _DerivedTable.model_validate(value)
            return Derived(derived.of, derived.times)
        table = _RangeTable.model_validate(value)
        return Range(table.low, table.high, table.log, table.multiple)
    if isinstance(value, list):
        if not value:
            raise ValueError("a list of values must not be empty")
        return tuple(value)
    return (value,)


DimensionField = Annotated[Range | Choice | Derived | tuple[Any, ...], BeforeValidator(_dimension)]


class SpaceTable(_Strict):
    """One ``[[space]]`` of a sweep file: a model and what varies.

    A single value or a list is crossed with everything else; ``{low, high, log, multiple}`` and ``{any = [...]}``
    are sampled together, ``count`` points of a space-filling design; ``{of, times}`` follows another setting.
    """

    model: str
    count: int = Field(default=1, ge=1, le=MOST_CONFIGURATIONS)
    settings: dict[str, DimensionField] = Field(default_factory=dict)
    batch_size: DimensionField = (32,)
    optimizer: DimensionField = ("adamw",)
    threads: DimensionField = (1,)
    dtype: DimensionField = ("float32",)
    memory_format: DimensionField = ("contiguous",)
    phase: DimensionField = ("train_step",)
    input: str | None = None
    token_ids: int | None = Field(default=None, ge=1)
    vocab: int = Field(default=30_000, ge=1)
    classes: int | None = Field(default=None, ge=1)


class TimingTable(_Strict):
    """``[timing]`` of a sweep file (see ``TimingLimits``)."""

    target_s: float = 0.3
    warmup_s: float = 0.2
    max_s: float = 5.0
    min_window_s: float = 0.005
    min_windows: int = 5
    max_windows: int = 200

    def limits(self) -> TimingLimits:
        """As the timing protocol takes them."""
        return TimingLimits(
            target_s=self.target_s,
            warmup_s=self.warmup_s,
            max_s=self.max_s,
            min_window_s=self.min_window_s,
            min_windows=self.min_windows,
            max_windows=self.max_windows,
        )


class SweepTable(_Strict):
    """A whole sweep file."""

    description: str = ""
    seed: int = 0
    rounds: int = Field(default=2, ge=1, le=1000)
    statistic: Literal[tuple(QUANTILES)] = "median"  # type: ignore[valid-type]
    backends: list[str] = Field(default_factory=lambda: ["cpu"], min_length=1)
    cap_s: float = Field(default=5.0, gt=0)
    timeout_s: float = Field(default=60.0, gt=0)
    repeat_contended: int = Field(default=0, ge=0)
    operator_steps: int = Field(default=0, ge=0)
    timing: TimingTable = Field(default_factory=TimingTable)
    space: list[SpaceTable] = Field(min_length=1)
