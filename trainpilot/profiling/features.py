"""Numbers for the predictors, derived from the table of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainpilot.profiling.result import OP_CLASSES, MemoryEstimate, OpGroup

_STEP_PHASES = {"forward": ("forward", "loss"), "backward": ("backward",), "optimizer": ("optimizer",)}


def features_of(
    op_groups: Iterable[OpGroup], memory: MemoryEstimate, counts: Mapping[str, float], uncounted: Mapping[str, int]
) -> dict[str, float]:
    """Features by name, all finite.

    For every operator class c: ``flops.<c>``, ``bytes.<c>`` (read plus written, in bytes) and ``calls.<c>`` over the
    whole step; the same three by phase (``forward`` with the loss, ``backward``, ``optimizer``); sizes of the model
    and memory by part in bytes.

    Args:
        op_groups: The table of operations.
        memory: Peak memory by part.
        counts: Further counts to take over, e.g. ``params``.
        uncounted: Operators without a formula, by calls.
    """
    features = {f"{what}.{name}": 0.0 for name in (*OP_CLASSES, *_STEP_PHASES) for what in ("flops", "bytes", "calls")}
    phase_of = {phase: name for name, phases in _STEP_PHASES.items() for phase in phases}
    for group in op_groups:
        for name in {group.op_class, phase_of[group.phase]}:  # the class "optimizer" is the phase as well
            features[f"flops.{name}"] += group.flops
            features[f"bytes.{name}"] += group.bytes_read + group.bytes_written
            features[f"calls.{name}"] += group.calls
    features |= {name: float(value) for name, value in counts.items()}
    features["optimizer_state_bytes"] = float(memory.optimizer_bytes)
    features["activation_bytes"] = float(memory.activations_bytes)
    features["peak_bytes"] = float(memory.peak_bytes)
    features["uncounted_calls"] = float(sum(uncounted.values()))
    return features
