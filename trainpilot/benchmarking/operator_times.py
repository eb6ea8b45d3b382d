"""Times of single operators inside real training steps, taken dispatch by dispatch."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainpilot.benchmarking.configuration import OperatorTiming

if TYPE_CHECKING:
    from trainpilot.backends import TrainingSession

# The sum of the operators, calibrated, and the step agree when their ratio lies between these.
AGREEMENT = (0.75, 1.33)
# Longer steps are not timed operator by operator: they cost much and tell no more operators than shorter ones.
MOST_TIMED_STEP_S = 0.2
_PARAMETERS = (4, 24)
_REPEATS = 9

Key = tuple[str, str, tuple[tuple[int, ...], ...], bool]


def time_operators(
    session: TrainingSession, op_groups: Sequence[Mapping[str, Any]], steps: int, step_time_s: float
) -> list[OperatorTiming]:
    """Run some steps, timing each operator call, and check their sum against the step.

    Args:
        session: A warm session on the CPU, where an operator is done when it returns.
        op_groups: Operations of the profile as a row holds them, which tell the class of each operator.
        steps: Steps to run; of each group of alike calls the fastest step counts.
        step_time_s: The label of the same configuration in s.

    Returns:
        One entry per operator, phase and shapes.
    """
    best: dict[Key, float] = {}
    calls: dict[Key, int] = {}
    for _ in range(steps):
        with _recorded() as record:
            session.step()
        for key, times in record.items():
            best[key] = min(best.get(key, sum(times)), sum(times))
            calls[key] = len(times)
    overhead = step_overhead()
    total_s = sum(best.values()) + overhead.per_step_s + sum(calls.values()) * overhead.per_call_s
    agreement = total_s / step_time_s
    classes = _classes(op_groups)
    return [
        OperatorTiming(
            op=op,
            phase=phase,
            op_class=_class_of(op, depthwise, classes),
            shapes=[list(shape) for shape in shapes],
            calls=calls[key],
            time_s=best[key],
            agreement=agreement,
            agrees=AGREEMENT[0] <= agreement <= AGREEMENT[1],
        )
        for key in best
        for op, phase, shapes, depthwise in [key]
    ]


@dataclass(frozen=True)
class Overhead:
    """Time of a step that is not inside its operator calls, in s; may be negative, as timing a call costs time too.

    Attributes:
        per_step_s: Once a step.
        per_call_s: For each operator call.
    """

    per_step_s: float
    per_call_s: float


@lru_cache(maxsize=1)
def step_overhead() -> Overhead:
    """Find the overhead from steps of many tiny operators, of two lengths.

    Building and walking the graph, the loop over parameters and the call of each operator cost time outside the
    operators, about the same for each of them.
    """
    (few_calls, few_s), (many_calls, many_s) = (_time_outside(parameters) for parameters in _PARAMETERS)
    per_call_s = (many_s - few_s) / (many_calls - few_calls)
    return Overhead(per_step_s=few_s - few_calls * per_call_s, per_call_s=per_call_s)


def _time_outside(parameters: int) -> tuple[int, float]:
    """Operator calls of a tiny training step, and its time outside them in s."""
    import torch

    weights = [torch.ones(8, requires_grad=True) for _ in range(parameters)]
    optimizer = torch.optim.AdamW(weights)

    def step() -> None:
        optimizer.zero_grad()
        value = torch.ones(8)
        for weight in weights:
            value = torch.relu(value * weight)
        torch.autograd.backward(value.mean())
        optimizer.step()

    def timed() -> float:
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin

    timed()
    whole = statistics.median(timed() for _ in range(_REPEATS))
    inside, calls = [], 0
    for _ in range(_REPEATS):
        with _recorded() as record:
            step()
        inside.append(sum(sum(times) for times in record.values()))
        calls = sum(len(times) for times in record.values())
    return calls, whole - statistics.median(inside)


@contextmanager
def _recorded() -> Iterator[dict[Key, list[float]]]:
    """Record the time of every operator call inside the block."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    record: dict[Key, list[float]] = defaultdict(list)
    in_optimizer = False

    def set_in_optimizer(value: bool) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            nonlocal in_optimizer
            in_optimizer = value

        return hook

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            begin = time.perf_counter()
            result = func(*args, **kwargs)
            elapsed = time.perf_counter() - begin
            if in_optimizer:
                phase = "optimizer"
            elif torch._C._current_autograd_node() is not None:
                phase = "backward"
            else:
                phase = "forward"
            shapes = tuple(_shapes((*args, *kwargs.values())))
            record[str(func).removesuffix(".default"), phase, shapes, _is_depthwise(str(func), args)].append(elapsed)
            return result

    before = register_optimizer_step_pre_hook(set_in_optimizer(True))
    after = register_optimizer_step_post_hook(set_in_optimizer(False))
    try:
        with Recorder():  # type: ignore[no-untyped-call]
            yield record
    finally:
        before.remove()
        after.remove()


def _shapes(values: Iterable[Any]) -> Iterator[tuple[int, ...]]:
    """Shapes of all tensors among arguments; lists of tensors, as optimizers take them, one level deep."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield tuple(value.shape)
        elif isinstance(value, list | tuple):
            yield from (tuple(item.shape) for item in value if isinstance(item, torch.Tensor))


def _is_depthwise(op: str, args: tuple[Any, ...]) -> bool:
    """True for a convolution with one input channel per group and several groups (weight: (out, in / groups, ...))."""
    if "convolution" not in op:
        return False
    import torch

    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    weight = tensors[2] if "backward" in op and len(tensors) > 2 else tensors[1]
    images = tensors[1] if "backward" in op else tensors[0]
    return weight.ndim > 2 and weight.shape[1] == 1 and images.shape[1] > 1


def _classes(op_groups: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for group in op_groups:
        found[group["op"].removesuffix(".default")].add(group["op_class"])
    return found


def _class_of(op: str, depthwise: bool, classes: dict[str, set[str]]) -> str:
    if "convolution" in op:
        return "depthwise_conv" if depthwise else "conv"
    known = classes.get(op) or classes.get(op.rpartition(".")[0]) or set()
    return next(iter(known)) if len(known) == 1 else "other"
