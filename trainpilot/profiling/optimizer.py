"""What the optimizer step dispatches, and how much state it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainpilot.errors import ModelError
from trainpilot.profiling.liveness import Liveness
from trainpilot.profiling.result import OpGroup
from trainpilot.profiling.tracer import Tracer
from trainpilot.workload import build_optimizer

if TYPE_CHECKING:
    from trainpilot.workload.optimizers import OptimizerLike

_SAMPLE_SIZE = 64


@dataclass(frozen=True)
class OptimizerCost:
    """One optimizer step in steady state, that is with its state already allocated.

    Attributes:
        groups: The table of operations.
        uncounted: Operators with arithmetic but without a formula, by calls.
        state_bytes: State of the size of a parameter; scalar step counters are left out.
        temporary_bytes: Most that the step allocates for a while.
    """

    groups: tuple[OpGroup, ...]
    uncounted: dict[str, int]
    state_bytes: int
    temporary_bytes: int


@dataclass(frozen=True)
class _Template:
    """One step on one parameter, as coefficients of its size: bytes = per_element * elements + fixed."""

    operations: tuple[tuple[str, int, float, float, float, float], ...]
    state_per_element: float
    temporary_per_element: float


def named_optimizer_cost(name: str, parameters: Sequence[torch.Tensor]) -> OptimizerCost:
    """Cost of an optimizer of ``torch.optim`` by its name in the plan.

    These work element by element and parameter by parameter, so one small real step tells the operations and
    their traffic per element; nothing of the size of the model is run or allocated.

    Args:
        name: Name of the optimizer.
        parameters: Those that got a gradient.
    """
    totals: dict[str, list[float]] = {}
    state = 0.0
    temporary = 0.0
    elements = 0
    for parameter in parameters:
        template = _template(name, parameter.dtype, torch.get_default_dtype())
        size = parameter.numel()
        elements += size
        state += template.state_per_element * size
        temporary = max(temporary, template.temporary_per_element * size)
        for op, calls, read, read_fixed, written, written_fixed in template.operations:
            total = totals.setdefault(op, [0, 0, 0])
            total[0] += calls
            total[1] += read * size + read_fixed
            total[2] += written * size + written_fixed
    shape = {"elements": elements, "tensors": len(parameters)}
    groups = tuple(
        OpGroup("optimizer", op, "optimizer", int(calls), 0, round(read), round(written), shape)
        for op, (calls, read, written) in totals.items()
    )
    return OptimizerCost(groups, {}, round(state), round(temporary))


def traced_optimizer_cost(
    optimizer: OptimizerLike, model: nn.Module, is_copy: Callable[[torch.Tensor], bool]
) -> OptimizerCost:
    """Cost of any optimizer, by running two steps on ``model``, a copy whose parameters have gradients.

    The first step, in which state is created, is not counted. State that exists already counts as it is.

    Args:
        optimizer: Name or factory.
        model: The copy.
        is_copy: Tells tensors that may be changed from those of the user.

    Raises:
        ModelError: The optimizer is one over parameters of the user.
    """
    built = build_optimizer(optimizer, model)
    if not all(is_copy(parameter) for group in built.param_groups for parameter in group["params"]):
        raise ModelError(
            f"the optimizer factory returned {type(built).__name__} over other parameters than those that it is given"
        )
    built.step()
    state_bytes = _state_bytes(built)
    liveness = _second_step_of(built)
    tracer = Tracer(liveness)
    tracer.phase = "optimizer"
    with tracer:
        built.step()
    trainable = [p for p in model.parameters() if p.grad is not None]
    shape = {"elements": sum(p.numel() for p in trainable), "tensors": len(trainable)}
    merged: dict[str, list[int]] = {}
    for group in tracer.groups():
        total = merged.setdefault(group.op, [0, 0, 0, 0])
        for position, value in enumerate((group.calls, group.flops, group.bytes_read, group.bytes_written)):
            total[position] += value
    groups = tuple(
        OpGroup("optimizer", op, "optimizer", calls, flops, read, written, shape)
        for op, (calls, flops, read, written) in merged.items()
    )
    return OptimizerCost(groups, tracer.uncounted(), state_bytes, liveness.peaks().total_bytes)


def _second_step_of(optimizer: torch.optim.Optimizer) -> Liveness:
    """Follows what a step allocates beyond parameters, gradients and state, which are there already."""
    liveness = Liveness()
    for group in optimizer.param_groups:
        liveness.ignore(group["params"])
        liveness.ignore(parameter.grad for parameter in group["params"] if parameter.grad is not None)
    for state in optimizer.state.values():
        liveness.ignore(value for value in state.values() if isinstance(value, torch.Tensor))
    return liveness


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim > 0
    )


@lru_cache(maxsize=64)
def _template(name: str, dtype: torch.dtype, _default_dtype: torch.dtype) -> _Template:
    # The default dtype decides on that of the step counters.
    small, large = (_one_step(name, dtype, size) for size in (_SAMPLE_SIZE, 2 * _SAMPLE_SIZE))
    operations = []
    for op, (calls, read, written) in small[0].items():
        read_slope, read_fixed = _line(read, large[0][op][1])
        written_slope, written_fixed = _line(written, large[0][op][2])
        operations.append((op, calls, read_slope, read_fixed, written_slope, written_fixed))
    return _Template(tuple(operations), _line(small[1], large[1])[0], _line(small[2], large[2])[0])


def _line(at_small: float, at_large: float) -> tuple[float, float]:
    slope = (at_large - at_small) / _SAMPLE_SIZE
    return slope, at_small - slope * _SAMPLE_SIZE


def _one_step(name: str, dtype: torch.dtype, size: int) -> tuple[dict[str, tuple[int, int, int]], int, int]:
    """Operations {name: (calls, bytes read, bytes written)}, state bytes and temporary bytes of a second step."""
    holder: Any = nn.Module()
    holder.weight = nn.Parameter(torch.zeros(size, dtype=dtype))
    holder.weight.grad = torch.ones(size, dtype=dtype)
    built = build_optimizer(name, holder)
    built.step()
    liveness = _second_step_of(built)
    tracer = Tracer(liveness)
    tracer.phase = "optimizer"
    with tracer:
        built.step()
    operations: dict[str, tuple[int, int, int]] = {}
    for group in tracer.groups():
        calls, read, written = operations.get(group.op, (0, 0, 0))
        operations[group.op] = (calls + group.calls, read + group.bytes_read, written + group.bytes_written)
    return operations, _state_bytes(built), liveness.peaks().total_bytes
