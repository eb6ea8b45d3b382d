"""Trees of modules as a stamp needs them, remembered so that an unchanged tree is recognised in a few sweeps in C.

A remembered tree keeps no module alive: modules and their classes are held weakly, and held strongly is only what can
refer to nothing else (numbers, strings, tuples of such). What can change in place is read anew every time.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import re
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainpilot.profiling.structure import unwrap

PLAIN = frozenset(
    (
        *(int, float, complex, bool, str, bytes, type(None), types.EllipsisType, types.NotImplementedType, range),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, re.Pattern, types.CodeType),
    )
)
_STANDARD_NAMES = tuple(nn.Module().__dict__)
_HOOKS = frozenset(_STANDARD_NAMES[_STANDARD_NAMES.index("_backward_pre_hooks") : _STANDARD_NAMES.index("_modules")])
_HOLDERS = ("_parameters", "_buffers", "_modules")
_ATTRIBUTES, _VALUES = operator.attrgetter("__dict__"), operator.methodcaller("values")
_LIST = frozenset((list,))
_MAPPINGS = frozenset((dict, collections.OrderedDict))
# Of no influence on a step of a copy, which has its buffers already and is not compiled.
_IGNORED = frozenset(("_non_persistent_buffers_set", "_compiled_call_impl"))

PLAIN_TENSORS = frozenset((torch.Tensor, nn.Parameter, nn.Buffer))
_PLAIN_TENSORS_OR_NONE = PLAIN_TENSORS | {type(None)}
_BASE: Any = torch._C.TensorBase
_GET_PROPERTIES = (
    *(_BASE.requires_grad.__get__, _BASE.data_ptr, _BASE.dtype.__get__),
    *(_BASE.size, _BASE.stride),
)

_trees: dict[int, ModuleTree] = {}  # by the id of the root, as long as that lives


class NoStampError(Exception):
    """Something is mutable and cannot be looked into, or is too large."""


@dataclass(frozen=True)
class TreeStamp:
    """What a tree consists of, but for what is read anew every time; one piece of a stamp.

    Attributes:
        content: Identities of modules and classes, names and plain values with their kinds.
        fingerprint: Its hash, computed once.
    """

    content: tuple[Any, ...]
    fingerprint: int

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TreeStamp) and self.content == other.content)

    def __hash__(self) -> int:
        return self.fingerprint


@dataclass(frozen=True, slots=True)
class Reading:
    """A tree as it is now.

    Attributes:
        stamp: All of it that is plain.
        identities: Ids of its modules, wrappers included.
        classes: Classes of its modules, each once.
        others: Hooks, and attributes, parameters and buffers that are not plain.
        tensors: Plain parameters and buffers, whose hooks and attributes are not in the stamp.
    """

    stamp: TreeStamp
    identities: frozenset[int]
    classes: tuple[type, ...]
    others: tuple[Any, ...]
    tensors: list[torch.Tensor]


def read_tree(root: nn.Module) -> Reading:
    """Walk over a module and its submodules, or confirm that they are as they were the last time.

    Raises:
        NoStampError: A module is scripted, or was never initialised.
    """
    tree = _trees.get(id(root))
    reading = None if tree is None else tree.reading(root)
    if reading is None:
        tree = ModuleTree(root)
        reading = tree.reading(root)
        if reading is None:
            raise NoStampError("the model changed meanwhile")
        _trees[id(root)] = tree
    return reading


class ModuleTree:
    """A module with its submodules, as it was when this was made."""

    def __init__(self, root: nn.Module) -> None:
        modules, wrapped = _walk(root)
        self._root = weakref.ref(root, functools.partial(_forget, id(root)))
        self._modules = tuple(map(weakref.ref, modules))
        self._classes = tuple(map(weakref.ref, dict.fromkeys(map(type, modules))))
        self._class_ids = _ids(map(type, modules))
        self._wrapped = tuple((weakref.ref(outer), weakref.ref(inner)) for outer, inner in wrapped)
        self._identities = frozenset(_ids((*modules, *itertools.chain.from_iterable(wrapped))))
        attributes = list(map(_ATTRIBUTES, modules))
        self._lengths = list(map(len, attributes))
        self._names = _flat(attributes)
        values = _values(attributes)
        places = _places(self._names, values)
        self._take_fixed, self._take_lists = _taker(places["fixed"]), _taker(places["lists"])
        self._take_others = _taker(places["others"])
        self._empty = _runs(places["empty"])
        self._take_held = tuple(_taker(places[name]) for name in _HOLDERS)
        self._fixed = self._take_fixed(values)
        lists = self._take_lists(values)
        self._list_lengths, self._items = list(map(len, lists)), _flat(lists)
        held = [take(values) for take in self._take_held]
        holders = _flat(held)
        self._holder_lengths, self._held_names = list(map(len, holders)), _flat(holders)
        self._children = _ids(_held(held[-1]))
        tensors = [*_held(held[0]), *_held(held[1])]
        self._tensor_kinds = list(map(type, tensors))
        self._is_plain = [kind in PLAIN_TENSORS for kind in self._tensor_kinds]
        self._is_special = [kind not in _PLAIN_TENSORS_OR_NONE for kind in self._tensor_kinds]
        plain = list(itertools.compress(tensors, self._is_plain))
        self._tensors = _ids(plain)
        self._properties = [list(map(get, plain)) for get in _GET_PROPERTIES]
        left = iter(self._names)
        names = (tuple(name for name in itertools.islice(left, n) if name not in _IGNORED) for n in self._lengths)
        content = (
            *(tuple(_ids(modules)), tuple(self._class_ids), tuple((id(outer), id(inner)) for outer, inner in wrapped)),
            *(tuple(names), tuple(map(tuple, places.values())), tuple(map(_kind, self._fixed)), self._fixed),
            *(tuple(self._list_lengths), tuple(map(type, self._items)), tuple(self._items)),
            *(tuple(self._holder_lengths), tuple(self._held_names), tuple(self._children)),
            *(tuple(self._tensor_kinds), tuple(self._tensors), *map(tuple, self._properties)),
        )
        self._stamp = TreeStamp(content, hash(content))

    def reading(self, root: nn.Module) -> Reading | None:
        """What the tree consists of now, or None if anything is not as it was.

        Sweeps in C over thousands of values, because this is to take a fraction of a millisecond. An id proves
        identity here, because what had it is still alive.
        """
        if self._root() is not root or any(_unwrapped(outer) is not inner() for outer, inner in self._wrapped):
            return None
        modules: list[Any] = list(map(operator.call, self._modules))
        classes: tuple[Any, ...] = tuple(map(operator.call, self._classes))
        # What is gone has the class of None.
        if _ids(map(type, modules)) != self._class_ids or any(kind is None for kind in classes):
            return None
        attributes = list(map(_ATTRIBUTES, modules))
        if list(map(len, attributes)) != self._lengths or _flat(attributes) != self._names:
            return None
        values = _values(attributes)
        if not _same(self._take_fixed(values), self._fixed) or any(map(any, map(values.__getitem__, self._empty))):
            return None
        lists = self._take_lists(values)
        if not _LIST.issuperset(map(type, lists)) or list(map(len, lists)) != self._list_lengths:
            return None
        if not _same(itertools.chain.from_iterable(lists), self._items):
            return None
        held = [take(values) for take in self._take_held]
        holders = _flat(held)
        if not _MAPPINGS.issuperset(map(type, holders)) or list(map(len, holders)) != self._holder_lengths:
            return None
        if _flat(holders) != self._held_names:
            return None
        parameters, buffers, children = map(_held, held)
        if _ids(children) != self._children:
            return None
        tensors = [*parameters, *buffers]
        if list(map(type, tensors)) != self._tensor_kinds:
            return None
        plain = list(itertools.compress(tensors, self._is_plain))
        if _ids(plain) != self._tensors:
            return None
        for get, expected in zip(_GET_PROPERTIES, self._properties, strict=True):
            if list(map(get, plain)) != expected:
                return None
        others = (*self._take_others(values), *itertools.compress(tensors, self._is_special))
        return Reading(self._stamp, self._identities, classes, others, plain)


def _forget(identity: int, _root: weakref.ref[nn.Module]) -> None:
    _trees.pop(identity, None)


def _unwrapped(reference: weakref.ref[nn.Module]) -> nn.Module | None:
    """What a wrapper that is held weakly wraps now; None if it is gone."""
    module = reference()
    return None if module is None else unwrap(module)


def _walk(root: nn.Module) -> tuple[list[nn.Module], list[tuple[nn.Module, nn.Module]]]:
    """All modules once, but for wrappers, which come with what they wrap."""
    modules: list[nn.Module] = []
    wrapped: list[tuple[nn.Module, nn.Module]] = []
    seen: set[int] = set()
    classes: set[type] = set()
    stack = [root]
    while stack:
        module = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        kind = type(module)
        if kind not in classes:
            if issubclass(kind, torch.jit.ScriptModule):
                raise NoStampError("the attributes of a scripted module are not visible")
            inner = unwrap(module)
            if inner is not module:
                wrapped.append((module, inner))
                stack.append(inner)
                continue
            classes.add(kind)
        if any(type(module.__dict__.get(name)) not in _MAPPINGS for name in _HOLDERS):
            raise NoStampError(f"a {kind.__name__} that was not initialised, or holds its parts in its own way")
        modules.append(module)
        stack += [child for child in module._modules.values() if child is not None]
    return modules, wrapped


def _places(names: list[str], values: list[Any]) -> dict[str, list[int]]:
    """Where in ``values`` there is what is compared in the same way."""
    places: dict[str, list[int]] = {kind: [] for kind in ("fixed", "lists", "empty", "others", *_HOLDERS)}
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        kind = type(value)
        if name in _HOLDERS:
            places[name if value else "empty"].append(place)
        elif name in _IGNORED:
            continue
        elif name in _HOOKS:
            places["others" if value else "empty"].append(place)
        elif kind in PLAIN or (kind is tuple and PLAIN.issuperset(map(type, value))):
            places["fixed"].append(place)
        elif kind is list and PLAIN.issuperset(map(type, value)):
            places["lists"].append(place)
        else:
            places["others"].append(place)
    return places


def _kind(value: Any) -> Any:
    return (tuple, *map(type, value)) if type(value) is tuple else type(value)


def _ids(objects: Iterable[Any]) -> list[int]:
    return list(map(id, objects))


def _flat(iterables: Iterable[Iterable[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(iterables))


def _values(attributes: list[dict[str, Any]]) -> list[Any]:
    return _flat(map(dict.values, attributes))


def _held(mappings: Iterable[Any]) -> list[Any]:
    """Values in the order of the names, whatever kind of mapping it is."""
    return _flat(map(_VALUES, mappings))


def _same(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Object for object; both have the same length."""
    return all(map(operator.is_, found, expected))


def _runs(places: list[int]) -> list[slice]:
    """The places as few slices."""
    runs: list[slice] = []
    for place in places:
        start = runs.pop().start if runs and runs[-1].stop == place else place
        runs.append(slice(start, place + 1))
    return runs


def _taker(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    # With one place, itemgetter gives the item itself.
    return operator.itemgetter(*places) if len(places) > 1 else lambda values: tuple(values[at] for at in places)
