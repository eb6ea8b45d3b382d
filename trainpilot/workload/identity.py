"""What makes two workloads the same: a hash of the model's structure and of how it is called."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_PRIMITIVES = (int, float, str, bool, bytes, type(None))
# How far objects are followed from a closure or attribute; a configuration seldom nests deeper.
_DEPTH = 4
_MOST_ITEMS = 1000


def digest(content: Any) -> str:
    """SHA-256 over canonical JSON, as 32 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def module_identity(model: nn.Module) -> str:
    """Hash the structure of a module: classes and their forward code, hyper-parameters, parameters, tied weights.

    The values of the weights and the device do not count; ``requires_grad`` and the train mode of each submodule
    do, because they change what a training step computes.
    """
    import torch

    seen: dict[int, int] = {}

    def tensors(found: dict[str, torch.Tensor | None]) -> Iterator[list[Any]]:
        for name, tensor in found.items():
            if tensor is None:
                yield [name, None]
                continue
            shape = "lazy" if torch.nn.parameter.is_lazy(tensor) else list(tensor.shape)
            yield [name, seen.setdefault(id(tensor), len(seen)), shape, str(tensor.dtype), tensor.requires_grad]

    parts = [
        [
            name,
            f"{type(module).__module__}.{type(module).__qualname__}",
            function_identity(getattr(type(module), "forward", None)),
            module.training,
            [[key, _plain(value)] for key, value in vars(module).items() if not key.startswith("_")],
            list(tensors(module._parameters)),
            list(tensors(module._buffers)),
        ]
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    return digest(parts)


def function_identity(function: Callable[..., Any] | None) -> str:
    """Name a function, class or callable object by its name, its byte code, and what it is bound to or closes over."""
    if isinstance(function, functools.partial):
        return digest(["partial", function_identity(function.func), _plain([function.args, function.keywords])])
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
    if isinstance(function, type):
        methods = {key: getattr(value, "__code__", None) for key, value in vars(function).items()}
        return digest([name, {key: _code(code) for key, code in methods.items() if isinstance(code, CodeType)}])
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return digest([name, _plain(function)])
    cells = [_cell(cell) for cell in getattr(function, "__closure__", None) or ()]
    defaults = _plain([getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)])
    return digest([name, _code(code), cells, defaults, _plain(getattr(function, "__self__", None))])


def _code(code: CodeType) -> list[Any]:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _cell(cell: Any) -> Any:
    try:
        return _plain(cell.cell_contents)
    except ValueError:  # an empty cell: the name is not bound yet
        return None


def _plain(value: Any, depth: int = _DEPTH) -> Any:
    """A value as JSON: plain values as they are, objects by their attributes, tensors by shape and type."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, _PRIMITIVES):
        return value
    if isinstance(value, list | tuple):
        # Long lists are data, not structure.
        return [len(value), *(_plain(item, depth) for item in value[:_MOST_ITEMS])]
    if isinstance(value, dict):
        return {str(key): _plain(item, depth) for key, item in value.items()}
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(getattr(value, "__code__", None), CodeType):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "named_modules"):
        return module_identity(value)
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [kind, list(value.shape), str(value.dtype)]
    attributes = getattr(value, "__dict__", None)
    if depth == 0 or not isinstance(attributes, dict):
        return kind
    return [kind, {key: _plain(item, depth - 1) for key, item in attributes.items() if not key.startswith("_")}]
