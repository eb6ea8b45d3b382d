"""Workloads: model reference, input, loss, optimizer and plan, with an identity hash."""

from trainpilot.workload.inputs import InputSpec
from trainpilot.workload.loss import compute_loss, main_output
from trainpilot.workload.optimizers import build_optimizer, check_optimizer, optimizer_names
from trainpilot.workload.plan import TrainingPlan
from trainpilot.workload.structure import (
    ModelInputs,
    batch_size_of,
    map_tensors,
    packed_sequences,
    signature,
    tensor_leaves,
)
from trainpilot.workload.workload import DTYPES, ResolvedWorkload, Workload

__all__ = [
    "DTYPES",
    "InputSpec",
    "ModelInputs",
    "ResolvedWorkload",
    "TrainingPlan",
    "Workload",
    "batch_size_of",
    "build_optimizer",
    "check_optimizer",
    "compute_loss",
    "main_output",
    "map_tensors",
    "optimizer_names",
    "packed_sequences",
    "signature",
    "tensor_leaves",
]
