"""The formula of the simulated device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Share of the device's FLOP rate that each class of operators reaches; the others are bound by traffic.
_EFFICIENCY = {"matmul": 1.0, "conv": 0.8, "attention": 0.5, "rnn": 0.4, "depthwise_conv": 0.1}
_HALF_PRECISION_SPEEDUP = 2.0
_FIRST_STEP_FACTOR = 3.0


@dataclass(frozen=True)
class SimulatedDevice:
    """Figures of a device that does not exist.

    The time of one training step of a profile is::

        overhead + sum over classes c of
            flops[c] / (flop rate * efficiency[c]) + bytes[c] / bandwidth + calls[c] * dispatch

    with efficiencies matmul 1, conv 0.8, attention 0.5, rnn 0.4, depthwise_conv 0.1 (FLOPs of other classes cost
    nothing). The flop rate is ``flops_per_s * threads``, doubled for bfloat16 and float16. The first step takes
    three times as long. Setting up takes ``setup_s + param_bytes / bandwidth``.

    Attributes:
        flops_per_s: FLOP rate of one thread in float32.
        bytes_per_s: Memory bandwidth, read plus written.
        dispatch_s: Cost of one operator.
        step_overhead_s: Cost of one step besides its operators.
        setup_s: Cost of setting up a model without parameters.
    """

    flops_per_s: float = 5e10
    bytes_per_s: float = 2e10
    dispatch_s: float = 5e-6
    step_overhead_s: float = 1e-4
    setup_s: float = 0.01

    def step_s(self, features: Mapping[str, float], threads: int, dtype: str, share: float = 1.0) -> float:
        """Time of one training step in s.

        Args:
            features: Features of a profile.
            threads: CPU threads.
            dtype: Compute type.
            share: Size of the batch over that of the profile; FLOPs and bytes follow it, dispatches do not.
        """
        from trainpilot.profiling import OP_CLASSES

        rate = self._rate(threads, dtype)
        total = self.step_overhead_s
        for op_class in OP_CLASSES:
            efficiency = _EFFICIENCY.get(op_class)
            if efficiency is not None:
                total += share * features[f"flops.{op_class}"] / (rate * efficiency)
            total += share * features[f"bytes.{op_class}"] / self.bytes_per_s
            total += features[f"calls.{op_class}"] * self.dispatch_s
        return total

    def first_step_s(self, step_s: float) -> float:
        """Time of the first step in s, given that of the others."""
        return _FIRST_STEP_FACTOR * step_s

    def forward_s(self, features: Mapping[str, float], threads: int, dtype: str, share: float = 1.0) -> float:
        """Time of one forward pass in s, all its FLOPs at the rate of matmul."""
        return (
            share * features["flops.forward"] / self._rate(threads, dtype)
            + share * features["bytes.forward"] / self.bytes_per_s
            + features["calls.forward"] * self.dispatch_s
        )

    def setup_time_s(self, param_bytes: float) -> float:
        """Time to set up a model in s."""
        return self.setup_s + param_bytes / self.bytes_per_s

    def figures(self, threads: int, dtype: str) -> dict[str, float]:
        """The device's constants under the names of calibration figures."""
        rate = self._rate(threads, dtype)
        return {
            **{f"{op_class}_flops_per_s": rate * efficiency for op_class, efficiency in _EFFICIENCY.items()},
            "memory_bytes_per_s": self.bytes_per_s,
            "dispatch_s": self.dispatch_s,
            "step_overhead_s": self.step_overhead_s,
        }

    def _rate(self, threads: int, dtype: str) -> float:
        return self.flops_per_s * threads * (1.0 if dtype == "float32" else _HALF_PRECISION_SPEEDUP)
