"""Keeps the attributes of a user's classes as they are while a copy of a model runs.

Copies share their classes with the originals, so a forward pass that counts its calls in its class, or caches a
result there, would leave that behind.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from trainpilot.profiling.libraries import HEAP_TYPE, is_library_class
from trainpilot.profiling.reach import codes, content_of, is_library

_CONTAINERS = (list, dict, set, collections.OrderedDict, collections.defaultdict, collections.deque, bytearray)


@contextmanager
def preserved_classes(model: nn.Module, functions: Iterable[Any] = ()) -> Iterator[None]:
    """Put back what is written to classes, and into containers and tensors that they hold.

    Args:
        model: Its modules' classes, those of their attributes, and those that their methods name.
        functions: Other functions of the step; what they name counts as well.
    """
    classes = list(_classes(model, functions))
    attributes = [(kind, dict(vars(kind))) for kind in classes]
    contents: dict[int, tuple[Any, Any]] = {}
    for _, held in attributes:
        for value in held.values():
            _keep(value, contents)
    try:
        yield
    finally:
        for kind, before in attributes:
            for name in vars(kind).keys() - before.keys():
                type.__delattr__(kind, name)
            for name, value in before.items():
                if vars(kind).get(name) is not value:
                    type.__setattr__(kind, name, value)
        for value, content in contents.values():
            _put_back(value, content)


def _classes(model: nn.Module, functions: Iterable[Any]) -> Iterator[type]:
    """Classes of the user, each once."""
    seen: set[Any] = set()
    stack: list[Any] = list(functions)
    for module in model.modules():
        stack += (type(module), *map(type, vars(module).values()))
    while stack:
        value = stack.pop()
        if isinstance(value, staticmethod | classmethod | types.MethodType):
            value = value.__func__
        if isinstance(value, property):
            stack += (value.fget, value.fset, value.fdel)
        elif isinstance(value, type):
            for kind in value.__mro__:
                if kind not in seen and kind.__flags__ & HEAP_TYPE and not is_library_class(kind):
                    seen.add(kind)
                    yield kind
                    stack += vars(kind).values()
        elif isinstance(value, types.FunctionType) and value not in seen and not is_library(value):
            seen.add(value)
            names = {name for code in codes(value.__code__) for name in code.co_names}
            stack += (value.__globals__[name] for name in names & value.__globals__.keys())
            stack += map(content_of, value.__closure__ or ())


def _keep(value: Any, contents: dict[int, tuple[Any, Any]]) -> None:
    if id(value) in contents:
        return
    if type(value) in _CONTAINERS:
        contents[id(value)] = (value, value.copy())
        for item in value.values() if isinstance(value, dict) else value:
            _keep(item, contents)
    elif type(value) in (torch.Tensor, nn.Parameter) and value.layout == torch.strided and not value.is_meta:
        contents[id(value)] = (value, (value.grad, value.detach().clone()))


def _put_back(value: Any, content: Any) -> None:
    if isinstance(value, torch.Tensor):
        value.grad, data = content
        if value.data.shape != data.shape or not torch.equal(value.data, data):
            value.data = data
    elif isinstance(value, dict):
        if list(map(id, value.values())) != list(map(id, content.values())) or list(value) != list(content):
            value.clear()
            value.update(content)
    elif isinstance(value, set):
        value.clear()
        value.update(content)
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(content)
    else:
        value[:] = content
