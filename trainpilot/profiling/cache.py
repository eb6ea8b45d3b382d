"""Remembers profiles, so that asking again about the same workload costs next to nothing.

A workload is recognised by the identity of its live objects (model, functions) and a stamp of everything in them that
changes a training step: layers, shapes, ``requires_grad``, train mode, hyper-parameters. Weights do not count. Entries
hold the objects weakly, so they keep no model alive.
"""

from __future__ import annotations

import dataclasses
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from trainpilot.profiling.result import WorkloadProfile
from trainpilot.workload import ModelInputs, Workload, tensor_leaves

_MOST_ENTRIES = 128
_PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_PLAIN_TYPES = frozenset((*_PLAIN, tuple))
_SIZED = frozenset((dict, OrderedDict, list, set))
# Every module starts with the same attributes (hooks and the like); its own follow.
_STANDARD_ATTRIBUTES = len(nn.Module().__dict__)


@dataclasses.dataclass(frozen=True)
class CacheKey:
    """What a cached profile belongs to.

    Attributes:
        stamp: Equal for workloads whose profiles are equal, as long as ``holders`` are the same objects.
        holders: Weak references to objects that the stamp names by their identity.
        inputs: Weak references to the tensors of the example inputs, which must be the same and unchanged where the
            profile depends on values.
        versions: How often each of them had been written to.
    """

    stamp: Hashable
    holders: tuple[weakref.ref[Any], ...]
    inputs: tuple[weakref.ref[Any], ...]
    versions: tuple[int, ...]


class ProfileCache:
    """The most recently used profiles; safe to use from several threads."""

    def __init__(self, most_entries: int = _MOST_ENTRIES) -> None:
        self._most_entries = most_entries
        self._entries: OrderedDict[Hashable, tuple[CacheKey, WorkloadProfile]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> WorkloadProfile | None:
        """The profile stored under ``key``, or None."""
        with self._lock:
            found = self._entries.get(key.stamp)
            if found is None:
                return None
            stored, profile = found
            same = _same(stored.holders, key.holders)
            if profile.data_dependent:
                same = same and _same(stored.inputs, key.inputs) and stored.versions == key.versions
            if not same:
                del self._entries[key.stamp]
                return None
            self._entries.move_to_end(key.stamp)
            return profile

    def put(self, key: CacheKey, profile: WorkloadProfile) -> None:
        """Store a profile; the least recently used one makes room."""
        with self._lock:
            self._entries[key.stamp] = (key, profile)
            while len(self._entries) > self._most_entries:
                self._entries.popitem(last=False)


def cache_key(workload: Workload) -> CacheKey | None:
    """Key of a workload, or None where it holds something that cannot be recognised again."""
    stamper = _Stamper()
    try:
        stamp = (
            stamper.model(workload),
            stamper.value(workload.example_inputs),
            stamper.value(workload.targets),
            stamper.value(workload.loss),
            stamper.value(workload.optimizer),
            workload.batch_size,
            workload.dtype,
            workload.input_spec,
            workload.classes,
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.backends.mkldnn.enabled,
        )
        hash(stamp)
    except TypeError:  # no weak reference or no hash
        return None
    inputs = list(tensor_leaves((workload.example_inputs, workload.targets)))
    # A tensor made in inference mode counts no versions.
    versions = tuple(-1 if leaf.is_inference() else leaf._version for leaf in inputs)
    return CacheKey(stamp, tuple(stamper.holders), tuple(map(weakref.ref, inputs)), versions)


class _Stamper:
    """Makes stamps of objects: by value where that is plain, else by identity."""

    def __init__(self) -> None:
        self.holders: list[weakref.ref[Any]] = []
        self._seen: set[int] = set()

    def model(self, workload: Workload) -> Hashable:
        if isinstance(workload.model, str):
            return workload.model_hash  # of the settings, or of the source file
        return self.value(workload.model), self.value(dict(workload.settings))

    def value(self, value: Any) -> Hashable:
        """Stamp of anything that a workload can hold."""
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, torch.Tensor):
            return value.shape, value.stride(), value.dtype, value.requires_grad, value.device
        if isinstance(value, nn.Module):
            if isinstance(value, torch.jit.ScriptModule):
                raise TypeError("the attributes of a scripted module are not visible")
            self.holders.append(weakref.ref(value))
            return self._modules(value)
        if isinstance(value, ModelInputs):
            return self.value(value.args), self.value(value.kwargs)
        if isinstance(value, list | tuple):
            return type(value), tuple(map(self.value, value))
        if isinstance(value, dict):
            return tuple((self.value(key), self.value(item)) for key, item in value.items())
        if isinstance(value, types.FunctionType):
            return self._held(value), tuple(map(self._cell, value.__closure__ or ()))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return tuple((field.name, self.value(getattr(value, field.name))) for field in dataclasses.fields(value))
        return self._held(value)

    def _held(self, value: Any) -> Hashable:
        self.holders.append(weakref.ref(value))
        return id(value), self._attributes(value)

    def _cell(self, cell: types.CellType) -> Hashable:
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            return None
        return _shallow(content), self._attributes(content)

    def _attributes(self, value: Any) -> Hashable:
        """Plain attributes of an object such as a configuration, once for each object."""
        if id(value) in self._seen:
            return None
        self._seen.add(id(value))
        attributes = getattr(value, "__dict__", None)
        return tuple(map(_shallow, attributes.values())) if type(attributes) is dict else None

    def _modules(self, model: nn.Module) -> Hashable:
        # One flat list and no calls in the inner loops: a large model has thousands of attributes, and a hit must
        # cost less than a millisecond.
        stamp: list[Any] = []
        others: list[Any] = []
        stack = [model]
        seen: set[int] = set()
        plain, sized, is_lazy = _PLAIN_TYPES, _SIZED, torch.nn.parameter.is_lazy
        while stack:
            module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            attributes = module.__dict__
            kind = type(module)
            stamp += (
                kind,
                id(kind.forward),
                attributes["training"],
                len(attributes["_forward_hooks"]),
                len(attributes["_forward_pre_hooks"]),
                len(attributes["_backward_hooks"]),
            )
            for tensors in (attributes["_parameters"], attributes["_buffers"]):
                for tensor in tensors.values():
                    if tensor is None:
                        stamp.append(None)
                    else:
                        shape = None if is_lazy(tensor) else tensor.shape
                        stamp += (id(tensor), tensor.requires_grad, shape, tensor.dtype)
            for value in list(attributes.values())[_STANDARD_ATTRIBUTES:]:
                of = type(value)
                if of in plain:
                    stamp.append(value)
                elif of in sized:
                    stamp += (id(value), len(value))
                else:
                    stamp.append(id(value))
                    others.append(value)
            for child in attributes["_modules"].values():
                if child is not None:
                    stamp.append(id(child))
                    stack.append(child)
        stamp.extend(self._attributes(value) for value in others if not isinstance(value, nn.Module | torch.Tensor))
        return tuple(stamp)


def _same(old: tuple[weakref.ref[Any], ...], new: tuple[weakref.ref[Any], ...]) -> bool:
    return len(old) == len(new) and all(a() is b() is not None for a, b in zip(old, new, strict=True))


def _shallow(value: Any) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[no-any-return]
    if kind is tuple:
        return tuple(map(_shallow, value))
    return (id(value), len(value)) if kind in _SIZED else id(value)
