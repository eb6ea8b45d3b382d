"""Which functions reach objects of the user: through closures, defaults and the globals that they name."""

from __future__ import annotations

import collections
import enum
import opcode
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trainpilot.profiling.libraries import is_library_class, is_library_file
from trainpilot.profiling.randomness import is_generator

_STORE_GLOBAL = opcode.opmap["STORE_GLOBAL"]
_REACHED = (list, dict, set, collections.deque, nn.Module, torch.Tensor, torch.Generator)
_INERT = (int, float, complex, bool, str, bytes, type(None), type, types.ModuleType, torch.dtype, torch.device)


class Reach:
    """Decides which functions need a copy of their own; remembers what it found."""

    def __init__(self) -> None:
        self._found: dict[types.FunctionType, bool] = {}
        self._methods: dict[type, dict[str, types.FunctionType]] = {}

    def reaches(self, function: types.FunctionType) -> bool:
        """True if calling ``function`` can reach an object that is not made anew by the call."""
        seen: set[types.FunctionType] = set()
        found = self._reaches(function, seen)
        if found:
            self._found[function] = True
        else:  # then nothing that was looked at on the way reaches anything either
            self._found.update(dict.fromkeys(seen, False))
        return found

    def methods(self, kind: type) -> dict[str, types.FunctionType]:
        """Methods of a class of modules that reach objects through globals or closures, by name."""
        known = self._methods.get(kind)
        if known is None:
            members: dict[str, Any] = {}
            for base in reversed(kind.__mro__[: kind.__mro__.index(nn.Module)]):
                members.update(vars(base))
            known = self._methods[kind] = {
                name: member
                for name, member in members.items()
                if isinstance(member, types.FunctionType) and not name.startswith("__") and self.reaches(member)
            }
        return known

    def _reaches(self, function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
        if function in self._found:
            return self._found[function]
        if function in seen:
            return False
        seen.add(function)
        if hasattr(function, "_torchdynamo_orig_callable"):  # compiled: the copy runs as it was written
            return True
        held = [*map(content_of, function.__closure__ or ()), function.__defaults__]
        held += (function.__kwdefaults__ or {}).values()
        if any(self._is_reached(value, seen) for value in held):
            return True
        # Libraries keep no state of a model in globals, and who compares their functions by identity must be right.
        if is_library(function):
            return False
        return any(_stores_global(code) for code in codes(function.__code__)) or any(
            not isinstance(value, types.FunctionType) or self._reaches(value, seen)
            for value in named_globals(function).values()
        )

    def _is_reached(self, value: Any, seen: set[types.FunctionType]) -> bool:
        if isinstance(value, types.FunctionType):
            return self._reaches(value, seen)
        if type(value) is tuple:
            return any(self._is_reached(item, seen) for item in value)
        return not isinstance(value, (*_INERT, types.BuiltinFunctionType))


def named_globals(function: types.FunctionType) -> dict[str, Any]:
    """What has a state among the globals that a function names, and functions, by name."""
    found = function.__globals__
    names = {name for code in codes(function.__code__) for name in code.co_names if name in found}
    return {
        name: found[name] for name in names if isinstance(found[name], types.FunctionType) or _has_state(found[name])
    }


def _has_state(value: Any) -> bool:
    """True for a container, a tensor, a module, a random generator, and an object of a class of the user."""
    if isinstance(value, _REACHED) or is_generator(value):
        return True
    kind = type(value)
    if isinstance(value, (*_INERT, enum.Enum, Exception)) or kind.__module__ == "builtins":
        return False
    return kind.__module__.startswith("numpy.random") or not is_library_class(kind)


def is_library(function: types.FunctionType) -> bool:
    """True for a function whose globals are those of a library."""
    return is_library_file(function.__globals__.get("__file__"))


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and those of the functions written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


def _stores_global(code: types.CodeType) -> bool:
    return _STORE_GLOBAL in code.co_code[::2]


def content_of(cell: types.CellType) -> Any:
    """What a cell of a closure holds; None as long as its name is not bound."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
