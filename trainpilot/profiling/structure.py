"""What a model consists of: parameters, buffers, layers, and how deep a forward pass goes."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
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
    """Counts over unique storages (tied weights count once).

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
    parameters = _unique(model.parameters())
    buffers = _unique(model.buffers())
    by_dtype: dict[str, int] = {}
    for parameter in parameters:
        if parameter.is_floating_point() or parameter.is_complex():
            name = str(parameter.dtype).removeprefix("torch.")
            by_dtype[name] = by_dtype.get(name, 0) + parameter.numel()
    return ModelStructure(
        params=sum(p.numel() for p in parameters),
        trainable_params=sum(p.numel() for p in parameters if p.requires_grad),
        buffers=sum(b.numel() for b in buffers),
        param_bytes=sum(p.numel() * p.element_size() for p in parameters),
        buffer_bytes=sum(b.numel() * b.element_size() for b in buffers),
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


def _unique(tensors: Iterator[torch.Tensor]) -> list[torch.Tensor]:
    found: dict[Hashable, torch.Tensor] = {}
    for tensor in tensors:
        if tensor.layout == torch.strided and type(tensor).__module__.startswith("torch"):
            key: Hashable = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape)
        else:
            key = (id(tensor), 0, tensor.shape)
        # One storage may be held trainable and frozen at once; it is trained then.
        if key not in found or tensor.requires_grad:
            found[key] = tensor
    return list(found.values())
