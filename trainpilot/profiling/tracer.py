"""A dispatch mode that counts every operator of a run, by phase, and follows the memory it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainpilot.errors import ModelError
from trainpilot.profiling.formulas import Call, UncountedError, sizes_of_plain, stored_elements
from trainpilot.profiling.lengths import SequenceLengths, depends_on_values
from trainpilot.profiling.liveness import Liveness
from trainpilot.profiling.operators import OpKind, kind_of, refine_class
from trainpilot.profiling.result import OpGroup, Phase
from trainpilot.profiling.traffic import tensors_in, traffic

# Products whose kernels take operands of one dtype only.
_SAME_DTYPE = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "convolution"})


class TooManyOperatorsError(ModelError):
    """The run dispatched more operators than it was allowed to."""


@dataclass(frozen=True, slots=True, eq=False)
class Cost:
    """What one dispatch costs; shared by all dispatches of the same operator on the same shapes."""

    kind: OpKind
    op_class: str
    flops: int
    bytes_read: int
    bytes_written: int
    sizes: Mapping[str, int]
    uncounted: bool


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators while it is active.

    It sits above the fake-tensor mode, so it sees what PyTorch dispatches for the tensors' device and never what
    computing the fake result takes. Operators that PyTorch itself splits into others (seen in inference mode only)
    are split here too.

    Args:
        liveness: Follows memory; None to count only.
        limit: Most operators to allow.
        lengths: Tells lengths of sequences from other values; None to take them for values.

    Attributes:
        phase: What is dispatched now belongs to; set by the caller.
        reads_values: An operator was seen whose result depends on values of tensors.
    """

    def __init__(
        self, liveness: Liveness | None = None, limit: int | None = None, lengths: SequenceLengths | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase: Phase = "forward"
        self._dispatches = 0
        self.reads_values = False
        self._liveness = liveness
        self._limit = limit
        self._lengths = lengths
        self._costs: dict[Any, Cost] = {}
        self._calls: dict[tuple[Phase, int], list[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator below this mode and count it."""
        kwargs = kwargs or {}
        kind = kind_of(func)
        if kind.ignored:
            return func(*args, **kwargs)
        if kind.composite:
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = _run(func, kind, args, kwargs)
        self._dispatches += 1
        if self._limit is not None and self._dispatches > self._limit:
            raise TooManyOperatorsError(f"stopped after {self._limit} operators")
        if self._lengths is not None:
            self.reads_values |= self._lengths.read_values(kind, args, out)
        elif depends_on_values(kind, args):
            self.reads_values = True
        cost = self._cost(func, kind, args, kwargs, out)
        entry = self._calls.get((self.phase, id(cost)))
        if entry is None:
            self._calls[self.phase, id(cost)] = [cost, 1]
        else:
            entry[1] += 1
        if self._liveness is not None:
            self._liveness.note(cost, args, out, backward=self.phase == "backward")
        return out

    def _cost(
        self, func: Callable[..., Any], kind: OpKind, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> Cost:
        if not kind.stable:
            return self._new_cost(("unstable", len(self._costs)), kind, args, kwargs, out)
        try:
            key = (func, _key(args), _key(kwargs.values()) if kwargs else None)
            cost = self._costs.get(key)
        except TypeError:  # an argument that cannot be hashed, e.g. a packed weight
            key, cost = ("unhashable", len(self._costs)), None  # type: ignore[assignment]
        return cost if cost is not None else self._new_cost(key, kind, args, kwargs, out)

    def _new_cost(self, key: Any, kind: OpKind, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Cost:
        call = Call(args, kwargs, out)
        read, written = traffic(kind, call)
        uncounted = kind.uncounted
        try:
            flops, sizes = kind.formula.count(call) if kind.formula is not None else (0, None)
        except UncountedError:
            uncounted, flops, sizes = True, 0, None
        if sizes is None:
            operands = [*tensors_in(args), *tensors_in((out,))] if kind.moves_data else []
            sizes = sizes_of_plain(operands)
        cost = Cost(kind, refine_class(kind.op_class, sizes), flops, read, written, sizes, uncounted)
        self._costs[key] = cost
        return cost

    def groups(self) -> tuple[OpGroup, ...]:
        """The table of operations: alike in phase, operator and sizes."""
        merged: dict[Any, list[int]] = {}
        for (phase, _), (cost, calls) in self._calls.items():
            key = (phase, cost.kind.name, cost.op_class, tuple(cost.sizes.items()))
            total = merged.setdefault(key, [0, 0, 0, 0])
            for position, value in enumerate((1, cost.flops, cost.bytes_read, cost.bytes_written)):
                total[position] += calls * value
        return tuple(
            OpGroup(phase, op, op_class, calls, flops, read, written, dict(sizes))
            for (phase, op, op_class, sizes), (calls, flops, read, written) in merged.items()
        )

    def uncounted(self) -> dict[str, int]:
        """Calls of operators that do arithmetic but have no formula, by name."""
        found: dict[str, int] = {}
        for cost, calls in self._calls.values():
            if cost.uncounted:
                found[cost.kind.name] = found.get(cost.kind.name, 0) + calls
        return found


def _run(func: Any, kind: OpKind, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if kind.base == "_grouped_mm" and isinstance(args[0], FakeTensor):
        # The shape rule of PyTorch insists on bfloat16, which the CPU kernel does not.
        return _grouped_mm_result(*args, **kwargs)
    if kind.base in _SAME_DTYPE and any(isinstance(tensor, FakeTensor) for tensor in args):
        _refuse_mixed_dtypes(kind, args)
    return func(*args, **kwargs)


def _refuse_mixed_dtypes(kind: OpKind, args: Sequence[Any]) -> None:
    """The shape rules of PyTorch let operands of several dtypes pass, which its kernels do not."""
    dtypes = {tensor.dtype for tensor in tensors_in(args)}
    if len(dtypes) > 1:
        raise RuntimeError(f"operands of {kind.base} must have one dtype, got {', '.join(sorted(map(str, dtypes)))}")


def _grouped_mm_result(
    a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None = None, _bias: object = None, dtype: Any = None
) -> torch.Tensor:
    groups = [offsets.shape[0]] if offsets is not None and a.ndim == 2 and b.ndim == 2 else []
    batch = [a.shape[0]] if a.ndim == 3 and b.ndim == 3 else groups
    return a.new_empty((*batch, a.shape[-2], b.shape[-1]), dtype=dtype or a.dtype)


def _key(values: Any) -> tuple[Any, ...]:
    """What the counts of a dispatch can depend on."""
    return tuple(
        [
            _tensor_key(value)
            if isinstance(value, torch.Tensor)
            else _key(value)
            if isinstance(value, list | tuple)
            else value
            for value in values
        ]
    )


def _tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.is_nested:  # its parts are contiguous
        return tuple(map(tuple, tensor._nested_tensor_size().tolist())), tensor.dtype
    if tensor.layout != torch.strided:
        stored = 0 if isinstance(tensor, FakeTensor) else stored_elements(tensor)
        return tensor.shape, tensor.layout, stored, tensor.dtype
    return tensor.shape, tensor.stride(), tensor.dtype
