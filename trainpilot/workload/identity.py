"""What makes two workloads the same: a hash of the model's structure and of how it is called."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_PRIMITIVES = (int, float, str, bool, bytes, type(None))
# How far objects are followed from a closure or attribute; a configuration seldom nests deeper.
_DEPTH = 4
_MOST_ITEMS = 1000
# Stands for an object inside itself.
_CYCLE = "cycle"


def digest(content: Any) -> str:
    """SHA-256 over canonical JSON, as 32 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def module_identity(model: nn.Module) -> str:
    """Hash the structure of a module: classes and their forward code, hyper-parameters, parameters, tied weights.

    The values of the weights and the device do not count; ``requires_grad`` and the train mode of each submodule
    do, because they change what a training step computes.
    """
    return _Walk().module(model)


def function_identity(function: Callable[..., Any] | None) -> str:
    """Name a function, class or callable object by its name, its byte code, and what it is bound to or closes over."""
    return _Walk().function(function)


class _Walk:
    """One walk over the objects that a workload holds; an object that leads back to itself is named, not followed."""

    def __init__(self) -> None:
        self._open: set[int] = set()  # objects being walked right now
        self._modules: dict[int, tuple[nn.Module, str]] = {}  # done; each keeps its module, so that no id is used twice

    def module(self, model: nn.Module) -> str:
        known = self._modules.get(id(model))
        if known is not None:
            return known[1]
        if id(model) in self._open:
            return _CYCLE
        self._open.add(id(model))
        try:
            found = digest(self._module_parts(model))
        finally:
            self._open.discard(id(model))
        self._modules[id(model)] = (model, found)
        return found

    def _module_parts(self, model: nn.Module) -> list[Any]:
        import torch

        seen: dict[int, int] = {}

        def tensors(found: Mapping[str, torch.Tensor | None]) -> Iterator[list[Any]]:
            for name, tensor in found.items():
                if tensor is None:
                    yield [name, None]
                    continue
                shape = "lazy" if torch.nn.parameter.is_lazy(tensor) else list(tensor.shape)
                yield [name, seen.setdefault(id(tensor), len(seen)), shape, str(tensor.dtype), tensor.requires_grad]

        return [
            [
                name,
                f"{type(module).__module__}.{type(module).__qualname__}",
                self.function(getattr(type(module), "forward", None)),
                module.training,
                [[key, self.value(value)] for key, value in vars(module).items() if not key.startswith("_")],
                list(tensors(module._parameters)),
                list(tensors(module._buffers)),
            ]
            for name, module in _named_modules(model, "", frozenset())
        ]

    def function(self, function: Callable[..., Any] | None) -> str:
        if isinstance(function, functools.partial):
            bound = self.value([function.args, function.keywords])
            return digest(["partial", self.function(function.func), bound])
        name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        if isinstance(function, type):
            methods = {key: getattr(value, "__code__", None) for key, value in vars(function).items()}
            return digest([name, {key: _code(code) for key, code in methods.items() if isinstance(code, CodeType)}])
        code = getattr(function, "__code__", None)
        if not isinstance(code, CodeType):
            return digest([name, self.value(function)])
        cells = [self._cell(cell) for cell in getattr(function, "__closure__", None) or ()]
        defaults = self.value([getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)])
        return digest([name, _code(code), cells, defaults, self.value(getattr(function, "__self__", None))])

    def _cell(self, cell: Any) -> Any:
        try:
            return self.value(cell.cell_contents)
        except ValueError:  # an empty cell: the name is not bound yet
            return None

    def value(self, value: Any, depth: int = _DEPTH) -> Any:
        """A value as JSON: plain values as they are, objects by their attributes, tensors by shape and type."""
        if isinstance(value, _PRIMITIVES):
            return value
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, type):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(getattr(value, "__code__", None), CodeType):
            return f"{value.__module__}.{value.__qualname__}"
        if hasattr(value, "named_modules"):
            return self.module(value)
        if id(value) in self._open:
            return _CYCLE
        self._open.add(id(value))
        try:
            return self._inside(value, depth)
        finally:
            self._open.discard(id(value))

    def _inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, list | tuple):
            # Long lists are data, not structure.
            return [len(value), *(self.value(item, depth) for item in value[:_MOST_ITEMS])]
        if isinstance(value, dict):
            return {str(key): self.value(item, depth) for key, item in value.items()}
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            return [kind, list(value.shape), str(value.dtype)]
        attributes = getattr(value, "__dict__", None)
        if depth == 0 or not isinstance(attributes, dict):
            return kind
        inside = {key: self.value(item, depth - 1) for key, item in attributes.items() if not key.startswith("_")}
        return [kind, inside]


def _named_modules(module: nn.Module, prefix: str, above: frozenset[int]) -> Iterator[tuple[str, nn.Module]]:
    """As ``named_modules(remove_duplicate=False)``, which has no end where a child registers its parent by a proxy."""
    yield prefix, module
    above |= {id(module._modules)}  # a proxy and its module differ, but not what they hold
    for name, child in module._modules.items():
        if child is not None and id(child._modules) not in above:
            yield from _named_modules(child, f"{prefix}.{name}" if prefix else name, above)


def _code(code: CodeType) -> list[Any]:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]
