"""What one unit of each amount costs before any row is known, and how far that may be from the truth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainpilot.errors import PredictorError
from trainpilot.predictors.amounts import AMOUNTS

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Price:
    """A calibration figure as the price of a unit.

    Attributes:
        figure: Name of the figure: a rate if it ends in ``_per_s``, else seconds.
        dearness: How many times dearer than the figure one unit is.
    """

    figure: str
    dearness: float = 1.0

    def unit_cost_s(self, figures: Mapping[str, float]) -> float:
        """Price of one unit in s.

        Raises:
            PredictorError: The calibration lacks the figure, or it is not above 0.
        """
        value = figures.get(self.figure)
        if value is None or not math.isfinite(value) or value <= 0:
            raise PredictorError(f"calibration: figure {self.figure!r} must be a number above 0, got {value!r}")
        return self.dearness / value if self.figure.endswith("_per_s") else self.dearness * value


def first_known(prices: tuple[Price, ...], figures: Mapping[str, float]) -> float:
    """Cost of a unit by the first price whose figure was probed, in s.

    Raises:
        PredictorError: The calibration lacks the last figure, or the one that counts is not above 0.
    """
    return next((price for price in prices if price.figure in figures), prices[-1]).unit_cost_s(figures)


@dataclass(frozen=True)
class _Start:
    """Starting price of an amount.

    Attributes:
        prices: The first one whose figure was probed counts.
        spread: Standard deviation, in log units, of the true price around it.
    """

    prices: tuple[Price, ...]
    spread: float


def _memory(dearness: float, spread: float = 0.8) -> _Start:
    return _Start((Price("memory_bytes_per_s", dearness),), spread)


def _dispatch(dearness: float, spread: float = 0.8) -> _Start:
    return _Start((Price("dispatch_s", dearness),), spread)


def _rate(figure: str, fallback: str, dearness: float, spread: float) -> _Start:
    return _Start((Price(figure), Price(fallback, dearness)), spread)


# All are orders of magnitude: rows correct them, and where no row has an amount it keeps its price, moved by the
# common level of all corrections. Arithmetic on each element is priced by what is written. The first entry
# whose name begins the name of an amount counts.
_STREAM_LEVELS = (0.4, 0.6, 1.0, 1.5)
_STREAM_DEARNESS = {
    "scattered": 3.0,
    "batch_norm_forward": 1.5,
    "batch_norm_backward": 1.5,
    "other_norm": 1.5,
    "reduction": 1.5,
    "fresh": 0.5,
}
_STARTS: tuple[tuple[str, _Start], ...] = (
    ("costly.", _memory(1.0, 1.2)),
    ("bag.", _memory(1.5)),
    ("bmm.batches", _dispatch(0.02, 1.5)),
    ("gemm.calls", _dispatch(1.5)),
    ("bmm.calls", _dispatch(1.5)),
    ("gemm.", _memory(0.5, 1.0)),
    ("bmm.", _memory(0.5, 1.0)),
    ("conv.groups", _dispatch(0.1, 1.5)),
    ("attention.calls", _dispatch(1.5)),
    ("rnn.calls", _dispatch(5.0)),
    ("embedding.calls", _dispatch(1.5)),
    ("norm.calls", _dispatch(1.5)),
    ("small.calls", _dispatch(1.5)),
    ("view.calls", _dispatch(0.5)),
    ("optimizer.calls", _dispatch(2.5)),
    ("step", _Start((Price("step_overhead_s", 0.5),), 0.7)),
    ("embedding.", _memory(1.5)),
    ("random.", _memory(4.0)),
    ("pool.", _memory(3.0)),
    ("other.", _memory(1.0)),
)


def _start_of(name: str) -> _Start:
    kind, _, what = name.partition(".")
    last = name.rpartition(".")[2]
    if last in ("flops", "causal_flops"):
        if kind == "conv":
            return _Start((Price("conv_flops_per_s"),), 0.5)
        if kind in ("gemm", "bmm"):
            return _Start((Price("matmul_flops_per_s", 1.0 if kind == "gemm" else 1.5),), 0.5)
        if kind in ("depthwise", "attention", "rnn"):
            figure = {"depthwise": "depthwise_conv", "attention": "attention", "rnn": "rnn"}[kind]
            fallback, dearness = ("conv", 8.0) if kind == "depthwise" else ("matmul", 2.0)
            return _rate(f"{figure}_flops_per_s", f"{fallback}_flops_per_s", dearness, 0.5)
    if last == "padding":
        return _Start((Price("conv_flops_per_s", 0.5),), 1.0)
    if last == "calls" and kind in ("conv", "depthwise"):
        return _dispatch(5.0)
    if last in ("rows", "planes"):
        return _dispatch(0.005, 1.5)
    if last == "heads":
        return _dispatch(0.1, 1.5)
    if last == "steps":
        return _dispatch(1.0, 1.2)
    if what.startswith("bytes") and last[-1].isdigit():
        return _memory(_STREAM_LEVELS[int(last[-1])] * _STREAM_DEARNESS.get(kind, 1.0))
    for prefix, start in _STARTS:
        if name.startswith(prefix):
            return start
    if kind in ("softmax", "safe_softmax"):
        return _memory(2.0)
    return _memory(0.5 if kind in ("conv", "depthwise") else 1.0, 1.0)


_ALL: tuple[_Start, ...] = tuple(_start_of(name) for name in AMOUNTS)
SPREADS: tuple[float, ...] = tuple(start.spread for start in _ALL)


def fine_unit_costs_s(figures: Mapping[str, float]) -> NDArray[np.float64]:
    """Price of one unit of each of ``AMOUNTS`` in s, by calibration figures alone.

    Raises:
        PredictorError: The calibration lacks a figure that is needed.
    """
    return np.array([first_known(start.prices, figures) for start in _ALL])
