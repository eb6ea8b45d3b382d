"""Rough rates: what a device cannot exceed, and how long a step may take before it is tried."""

from __future__ import annotations

from collections.abc import Mapping

# No kernel is three times as fast as the probes' best; formulas that count more than a fast algorithm needs
# (Winograd: 2.25 times) stay below it.
_OVER_CALIBRATION = 3.0
# Where nothing was calibrated: 6 GHz with two 512-bit multiply-add units (64 FLOPs a cycle in float32); matrix
# units of CPUs do 2048 a cycle in 16 bit.
_CPU_FLOPS_PER_S = {"float32": 6e9 * 64, "bfloat16": 6e9 * 2048, "float16": 6e9 * 2048}
# More than any single device does densely.
_ACCELERATOR_FLOPS_PER_S = {"cuda": 1e16, "xpu": 1e16, "mps": 1e15, "ane": 1e15}
# An ordinary core, for estimates that only decide whether a configuration is tried at all.
_ASSUMED = {"matmul_flops_per_s": 3e10, "memory_bytes_per_s": 6e9, "dispatch_s": 1e-5}


def peak_flops_per_s(backend: str, threads: int, dtype: str, calibration: Mapping[str, float]) -> float | None:
    """A rate that the device cannot exceed, in FLOP/s, or None where none is known."""
    probed = [value for name, value in calibration.items() if name.endswith("_flops_per_s")]
    if probed:
        return _OVER_CALIBRATION * max(probed)
    if backend == "cpu":
        return threads * _CPU_FLOPS_PER_S[dtype]
    return _ACCELERATOR_FLOPS_PER_S.get(backend)


def estimate_step_s(features: Mapping[str, float], threads: int, calibration: Mapping[str, float]) -> float:
    """Rough time of one step in s: FLOPs by rate, bytes by bandwidth, dispatches by their cost.

    Args:
        features: Features of a profile (``flops.<phase>``, ``bytes.<phase>``, ``calls.<phase>``).
        threads: CPU threads.
        calibration: Figures for these threads; those of an ordinary core are assumed where there are none.
    """
    figures = _ASSUMED | {"matmul_flops_per_s": _ASSUMED["matmul_flops_per_s"] * threads} | dict(calibration)

    def total(kind: str) -> float:
        return sum(features.get(f"{kind}.{phase}", 0.0) for phase in ("forward", "backward", "optimizer"))

    return (
        total("flops") / figures["matmul_flops_per_s"]
        + total("bytes") / figures["memory_bytes_per_s"]
        + total("calls") * figures["dispatch_s"]
    )
