"""What a model consists of: parameters, buffers, layers, and how deep a forward pass goes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


@dataclass(frozen=True)
class ModelStructure:
    """Counts over unique elements in memory (tied and overlapping weights count once).

    Attributes:
        params: Elements of all parameters.
        trainable_params: Those that require a gradient.
        buffers: Elements of all buffers.
        param_bytes: Bytes of all parameters.
        buffer_bytes: Bytes of all buffers.
        layers: Unique layers that hold parameters.
        has_recurrent: A recurrent module is among them.
        dtype: Type of most floating-point parameter elements, ``float32`` without any.
    """

    params: int
    trainable_params: int
    buffers: int
    param_bytes: int
    buffer_bytes: int
    layers: int
    has_recurrent: bool
    dtype: str


def structure_of(model: nn.Module) -> ModelStructure:
    """Count what a model with materialised parameters consists of."""
    parameters = _memories(model.parameters())
    buffers = _memories(model.buffers())
    by_dtype: dict[str, int] = {}
    for memory in parameters:
        if memory.dtype is not None:
            by_dtype[memory.dtype] = by_dtype.get(memory.dtype, 0) + memory.elements
    return ModelStructure(
        params=sum(memory.elements for memory in parameters),
        trainable_params=sum(memory.trainable for memory in parameters),
        buffers=sum(memory.elements for memory in buffers),
        param_bytes=sum(memory.elements * memory.element_bytes for memory in parameters),
        buffer_bytes=sum(memory.elements * memory.element_bytes for memory in buffers),
        layers=sum(1 for _ in _layers(model)),
        has_recurrent=any(isinstance(module, _RECURRENT) for module in model.modules()),
        dtype=max(by_dtype, key=by_dtype.__getitem__) if by_dtype else "float32",
    )


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside data-parallel and compiled wrappers."""
    while True:
        inner = inner_of_parallel(module) or inner_of_compiled(module)
        if inner is None:
            return module
        module = inner


def inner_of_parallel(module: nn.Module) -> nn.Module | None:
    """The module inside a data-parallel wrapper of PyTorch; None for any other module."""
    return module.module if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) else None


def inner_of_compiled(module: nn.Module) -> nn.Module | None:
    """The module inside what ``torch.compile`` makes; None for any other module."""
    # Importing the compiler takes seconds; where nobody did, nothing is compiled.
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or not isinstance(module, compiler.OptimizedModule):
        return None
    inner: nn.Module = module._orig_mod
    return inner


def is_lazy_model(model: nn.Module) -> bool:
    """True if a parameter or buffer has no shape yet."""
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


class LayerCalls:
    """Counts calls of layers with parameters.

    Attributes:
        depth: Calls so far.
    """

    def __init__(self) -> None:
        self.depth = 0

    @contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        """Count the calls made in this block; ``model`` must be a copy, because it gets hooks."""

        def called(_module: nn.Module, _inputs: object) -> None:
            self.depth += 1

        # Calls inside a scripted module are not visible.
        layers = [layer for layer in _layers(model) if not isinstance(layer, torch.jit.ScriptModule)]
        handles = [layer.register_forward_pre_hook(called) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """Leaf modules that hold parameters; multi-head attention and parametrized modules count as leaves."""
    stack = [model]
    seen: set[int] = set()
    while stack:
        module = stack.pop()
        if id(module._modules) in seen:  # a weak proxy of a module has another id, but holds the same
            continue
        seen.add(id(module._modules))
        children = [c for name, c in module._modules.items() if c is not None and name != "parametrizations"]
        if children and not isinstance(module, nn.MultiheadAttention):
            stack.extend(children)
        elif next(module.parameters(recurse=False), None) is not None or is_parametrized(module):
            yield module


@dataclass(frozen=True)
class _Memory:
    """Tensors that share a storage.

    Attributes:
        elements: Elements of the storage that they cover, each once.
        trainable: Those covered by tensors that require a gradient.
        element_bytes: Bytes of one element.
        dtype: Type of the first tensor, None if it has neither floating-point nor complex elements.
    """

    elements: int
    trainable: int
    element_bytes: int
    dtype: str | None


def _memories(tensors: Iterator[torch.Tensor]) -> list[_Memory]:
    by_storage: dict[int, list[torch.Tensor]] = {}
    for tensor in tensors:
        plain = tensor.layout == torch.strided and type(tensor).__module__.startswith("torch")
        by_storage.setdefault(tensor.untyped_storage()._cdata if plain else id(tensor), []).append(tensor)
    return [
        _Memory(
            elements=_covered(shared),
            trainable=_covered([tensor for tensor in shared if tensor.requires_grad]),
            element_bytes=shared[0].element_size(),
            dtype=str(shared[0].dtype).removeprefix("torch.")
            if shared[0].is_floating_point() or shared[0].is_complex()
            else None,
        )
        for shared in by_storage.values()
    ]


def _covered(shared: list[torch.Tensor]) -> int:
    """Elements that tensors of one storage cover together, in elements of the first one's type."""
    if len(shared) < 2:
        return sum(tensor.numel() for tensor in shared)
    unit = shared[0].element_size()
    ranges: set[tuple[int, int]] = set()
    for tensor in shared:
        size = tensor.element_size()
        start = int(tensor.storage_offset()) * size
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.numel() == extent:
            ranges.add((start, start + int(extent) * size))
        elif tensor.numel():  # with gaps: element by element
            offsets = torch.zeros((), dtype=torch.int64)
            for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
                offsets = offsets.unsqueeze(-1) + torch.arange(n) * stride
            ranges |= {(start + at * size, start + (at + 1) * size) for at in offsets.flatten().tolist()}
    covered = end = 0
    for first, last in sorted(ranges):
        covered += max(0, last - max(first, end))
        end = max(end, last)
    return covered // unit
