"""Counts of a single call, for functions and modules that are not trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainpilot.errors import ModelError
from trainpilot.profiling.classes import preserved_classes
from trainpilot.profiling.copies import ModelCopier, fake_converter, to_real
from trainpilot.profiling.guard import preserved_gradients, tracing_state
from trainpilot.profiling.lengths import SequenceLengths
from trainpilot.profiling.result import OpGroup
from trainpilot.profiling.tracer import Tracer
from trainpilot.workload import ModelInputs, tensor_leaves


@dataclass(frozen=True)
class OperationCounts:
    """Counts of one call.

    Attributes:
        forward_flops: FLOPs of the call.
        backward_flops: FLOPs of the backward pass, 0 if none was asked for or none was possible.
        uncounted_ops: Operators that do arithmetic but have no formula, by calls.
        op_groups: The table of operations.
        data_dependent: The call looked at values of tensors, so the counts are those of these arguments.
    """

    forward_flops: int
    backward_flops: int
    uncounted_ops: Mapping[str, int]
    op_groups: tuple[OpGroup, ...]
    data_dependent: bool


def count_operations(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
) -> OperationCounts:
    """Count what ``function(*args, **kwargs)`` dispatches, on copies of everything and on fake tensors if possible.

    Evaluation is counted as it runs: under ``torch.no_grad()`` a module in eval mode takes PyTorch's fused paths.

    Args:
        function: A module or function.
        args: Positional arguments.
        kwargs: Keyword arguments.
        backward: Also count the gradients of the sum of all outputs that have any.

    Raises:
        ModelError: The function raises.
    """
    inputs = ModelInputs(tuple(args), kwargs or {})
    with tracing_state():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            return _count(ModelCopier(fake_converter(mode)), mode, function, inputs, backward)
        except Exception:  # noqa: BLE001 - values are needed, or the error is the function's own: real tensors tell
            try:
                return _count(ModelCopier(to_real), nullcontext(), function, inputs, backward)
            except Exception as error:
                told = " ".join(f"{type(error).__name__}: {error}".split())
                raise ModelError(f"{getattr(function, '__name__', type(function).__name__)} raised {told}") from error


def _count(
    copier: ModelCopier,
    mode: AbstractContextManager[Any],
    function: Callable[..., Any],
    inputs: ModelInputs,
    backward: bool,
) -> OperationCounts:
    called = copier.value(function)
    inputs = copier.inputs(inputs)
    tracer = Tracer(lengths=SequenceLengths(inputs))
    classes = preserved_classes(called if isinstance(called, nn.Module) else nn.Module(), (called,))
    with classes, mode, tracer:
        outputs = called(*inputs.args, **inputs.kwargs)
        reads_values = tracer.reads_values and isinstance(mode, nullcontext)
        if backward:
            tracer.phase = "backward"
            roots = [leaf for leaf in tensor_leaves(outputs) if leaf.requires_grad]
            with preserved_gradients(roots, copier.made):
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    groups = tracer.groups()
    return OperationCounts(
        forward_flops=sum(group.flops for group in groups if group.phase == "forward"),
        backward_flops=sum(group.flops for group in groups if group.phase == "backward"),
        uncounted_ops=tracer.uncounted(),
        op_groups=groups,
        data_dependent=reads_values,
    )
