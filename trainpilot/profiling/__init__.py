"""Profiling: a trace of one training step, operator by operator, with FLOPs, bytes and peak memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainpilot.profiling.features import features_of
from trainpilot.profiling.result import OP_CLASSES, MemoryEstimate, OpGroup, WorkloadProfile
from trainpilot.profiling.table import ProfileTable, Row, profile_table

if TYPE_CHECKING:
    from trainpilot.profiling.counting import OperationCounts, count_operations
    from trainpilot.workload import Workload

__all__ = [
    "OP_CLASSES",
    "MemoryEstimate",
    "OpGroup",
    "OperationCounts",
    "ProfileTable",
    "Row",
    "WorkloadProfile",
    "count_operations",
    "features_of",
    "profile",
    "profile_table",
]


# A function here rather than a lazy attribute, because reading a profile must not load torch.
def profile(workload: Workload) -> WorkloadProfile:
    """Count one training step of a workload: forward, loss, backward and optimizer.

    The step runs on fake tensors, so nothing of the model's size is computed or allocated, and always on copies: the
    user's model, inputs and random generators are the same afterwards, also when something raises. A model whose
    control flow reads values runs once on real tensors instead, again on copies. The operators are those that the
    CPU dispatches, wherever the model is. Modules keep their train or eval mode; BatchNorm that refuses a single
    sample is profiled with two, with a note. Asking again about an unchanged workload is answered from a cache.

    Raises:
        ModelError: The model cannot be built or raises, or is quantised and so cannot be trained.
        NothingToTrainError: No parameter requires a gradient.
        LossRequiredError: No loss was given and none can be inferred.
    """
    from trainpilot.profiling.profiler import profile_workload

    return profile_workload(workload)


def __getattr__(name: str) -> Any:
    if name in ("OperationCounts", "count_operations"):
        from trainpilot.profiling import counting

        return getattr(counting, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
