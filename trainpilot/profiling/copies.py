"""Copies of models, inputs and functions, so that a trace never touches what the user holds."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.overrides import TorchFunctionMode

from trainpilot.profiling.structure import unwrap
from trainpilot.workload import ModelInputs

_ATOMIC = frozenset((int, float, complex, bool, str, bytes, type(None), type, torch.dtype, torch.device, torch.Size))
_CONTAINERS = (list, dict, set)
_PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)
# A module class that overrides one of these decides itself how it is copied.
_COPY_PROTOCOL = ("__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")


class ModelCopier:
    """Copies modules, tensors and functions consistently: what is shared in the original is shared in the copy.

    An attribute that cannot be copied (a lock, an open file) is shared with the original.

    Args:
        convert: Gives the copy's tensor for an original one: same sizes, strides and dtype. Tensors that share a
            storage are kept tied here, so it is asked at most once for each storage.
    """

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._convert = convert
        self._memo: dict[int, Any] = {}  # as copy.deepcopy keeps it: original's id -> copy
        self._keep: list[Any] = []  # originals, so that no id is used twice
        self._bases: dict[int, torch.Tensor] = {}  # original storage -> converted tensor that covers it

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of ``module``, every parameter, buffer and other tensor converted, hooks cut off from outside."""
        copied: nn.Module = self._value(module)
        return copied

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy's tensor for ``tensor``: always the same one, and a parameter for a parameter."""
        known: torch.Tensor | None = self._memo.get(id(tensor))
        if known is not None:
            return known
        converted = self._convert_tied(tensor)
        if isinstance(tensor, nn.Parameter) and not is_lazy(tensor):
            converted = _as_parameter(converted, tensor)
        elif tensor.requires_grad and not is_lazy(tensor):
            converted = converted.detach().requires_grad_()
        self._remember(tensor, converted)
        return converted

    def inputs(self, inputs: ModelInputs) -> ModelInputs:
        """A copy of what a model is called with, containers and other objects included."""
        return ModelInputs(tuple(map(self._value, inputs.args)), {k: self._value(v) for k, v in inputs.kwargs.items()})

    def value(self, value: Any) -> Any:
        """A copy of targets or of any other object."""
        return self._value(value)

    def function(self, function: Any) -> Any:
        """A callable that does the same without reaching the user's objects.

        Modules and other objects are copied. A function gets copies of what its closure holds and of the modules,
        tensors and mutable containers among the globals that it names.
        """
        if not isinstance(function, types.FunctionType):
            return self._value(function)
        found = function.__globals__
        touched = {
            name: self._value(found[name])
            for name in _global_names(function.__code__)
            if isinstance(found.get(name), (*_CONTAINERS, nn.Module, torch.Tensor))
        }
        return self._rebuild(function, {**found, **touched})

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMIC:
            return value
        known = self._memo.get(id(value))
        if known is not None:
            return known
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, nn.Module):
            inner = unwrap(value)
            if inner is not value:
                return self._value(inner)
            if isinstance(value, torch.jit.ScriptModule):
                return self._remember(value, _copied_script(value))
            if _copies_plainly(kind):
                return self._module(value)
        if kind is dict or kind is OrderedDict:
            mapping = self._remember(value, kind())
            for key, item in value.items():
                mapping[key] = self._value(item)
            return mapping
        if kind is list:
            items = self._remember(value, [])
            items.extend(map(self._value, value))
            return items
        if kind is tuple:
            return self._remember(value, tuple(map(self._value, value)))
        if kind is types.FunctionType:
            return self._remember(value, self._rebuild(value, value.__globals__)) if value.__closure__ else value
        if kind is types.MethodType:
            return types.MethodType(value.__func__, self._value(value.__self__))
        if isinstance(value, nn.Module):
            for tensor in (*value.parameters(), *value.buffers()):
                self.tensor(tensor)
        try:
            with _ConvertOnDeepcopy(self):
                return copy.deepcopy(value, self._memo)
        except Exception:  # noqa: BLE001 - whatever a foreign copy protocol raises, sharing is the way left
            return self._remember(value, value)

    def _module(self, module: nn.Module) -> nn.Module:
        kind = type(module)
        copied: nn.Module = self._remember(module, kind.__new__(kind))
        attributes = copied.__dict__
        for name, value in module.__dict__.items():
            if name != "_compiled_call_impl":  # the copy runs eagerly
                attributes[name] = self._hooks(value) if name.endswith("_hooks") and value else self._value(value)
        return copied

    def _hooks(self, hooks: dict[int, Any]) -> Any:
        # A hook that fills a list outside must fill a copy of that list.
        copied = self._remember(hooks, type(hooks)())  # a handle that removes a hook finds the copy's
        for key, hook in hooks.items():
            copied[key] = self.function(hook)
        return copied

    def _remember(self, original: Any, copied: Any) -> Any:
        self._memo[id(original)] = copied
        self._keep.append(original)
        return copied

    def _rebuild(self, function: types.FunctionType, global_names: dict[str, Any]) -> types.FunctionType:
        cells = tuple(self._cell(cell) for cell in function.__closure__ or ())
        rebuilt = types.FunctionType(
            function.__code__, global_names, function.__name__, function.__defaults__, cells or None
        )
        rebuilt.__kwdefaults__ = function.__kwdefaults__
        rebuilt.__qualname__ = function.__qualname__
        rebuilt.__dict__.update(function.__dict__)
        return rebuilt

    def _cell(self, cell: types.CellType) -> types.CellType:
        known: types.CellType | None = self._memo.get(id(cell))
        if known is not None:
            return known
        copied: types.CellType = self._remember(cell, types.CellType())
        try:
            copied.cell_contents = self._value(cell.cell_contents)
        except ValueError:  # the name is not bound yet
            return copied
        return copied

    def _convert_tied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or type(tensor) not in _PLAIN_TENSORS:
            return self._convert(tensor)
        storage = tensor.untyped_storage()
        base = self._bases.get(storage._cdata)
        if base is None:
            if tensor.numel() * tensor.element_size() == storage.nbytes():
                base = self._convert(tensor.detach())
            else:  # a view of something larger: convert all of that, so that other views of it stay tied
                length = storage.nbytes() // tensor.element_size()
                base = self._convert(tensor.detach().as_strided((length,), (1,), 0))
            self._bases[storage._cdata] = base
            self._keep.append(storage)  # its address is a key now
        if base.shape == tensor.shape and base.stride() == tensor.stride() and base.dtype == tensor.dtype:
            return base
        with torch.no_grad():
            flat = base.as_strided((base.numel(),), (1,), 0)
            if flat.dtype != tensor.dtype:
                flat = flat.view(tensor.dtype)
            return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class _ConvertOnDeepcopy(TorchFunctionMode):
    """While active, ``copy.deepcopy`` of a tensor converts it instead of copying its data."""

    def __init__(self, copier: ModelCopier) -> None:
        super().__init__()
        self._copier = copier

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            return self._copier.tensor(args[0])
        if func is torch._C.TensorBase.clone and isinstance(args[0], torch.Tensor):  # Parameter.__deepcopy__
            return self._copier.tensor(args[0])
        return func(*args, **(kwargs or {}))


def fake_converter(fake_mode: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Convert to fake tensors on the CPU, whatever the original's device; allocates nothing."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or type(tensor) not in _PLAIN_TENSORS:
            return fake_mode.from_tensor(tensor, static_shapes=True)  # type: ignore[no-any-return]
        with fake_mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    return convert


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to the meta device, lazy parameters staying lazy; allocates nothing."""
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="meta", dtype=tensor.dtype)
        return lazy
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def to_real(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to a tensor on the CPU with the same values; lazy parameters stay lazy."""
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        kind: Any = type(tensor)
        lazy: torch.Tensor = kind(requires_grad=tensor.requires_grad, device="cpu", dtype=tensor.dtype)
        return lazy
    return tensor.detach().to("cpu", copy=True)


def _copied_script(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    with torch.no_grad():  # else the copies are results of the originals, to which gradients would flow
        copied = copy.deepcopy(module)
    for original, parameter in zip(module.parameters(), copied.parameters(), strict=True):
        parameter.requires_grad_(original.requires_grad)
    return copied


def _copies_plainly(kind: type) -> bool:
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in _COPY_PROTOCOL)


def _as_parameter(converted: torch.Tensor, original: nn.Parameter) -> torch.Tensor:
    if type(converted) in _PLAIN_TENSORS:
        parameter: torch.Tensor = nn.Parameter(converted.detach(), requires_grad=original.requires_grad)
    else:  # a tensor subclass (a fake tensor) is marked instead of wrapped
        parameter = converted.detach().requires_grad_(original.requires_grad)
        parameter._is_param = True
    for name, value in vars(original).items():
        setattr(parameter, name, value)
    return parameter


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
