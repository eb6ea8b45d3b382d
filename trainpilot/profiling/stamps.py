"""Stamps of live objects: equal as long as nothing in them changed that a training step could see.

Everything is stamped by its content: attributes, containers, classes, and functions with their code, defaults, closure
and the globals that they name. Modules and their tensors are told apart by their identity as well, and the elements of
their tensors do not count. What cannot be looked into (a lock, an open file, a random generator) has no stamp.
"""

from __future__ import annotations

import collections
import dis
import functools
import hashlib
import itertools
import logging
import operator
import pathlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import PackedSequence

from trainpilot.profiling.libraries import HEAP_TYPE, is_library_class, is_library_file, is_library_module
from trainpilot.profiling.trees import PLAIN, PLAIN_TENSORS, NoStampError, read_tree

# Stamped as themselves: unchanging, or of no influence on a step; none of them reaches a user's object.
_OPAQUE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    logging.Logger,
    pathlib.PurePath,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
_MISSING = object()
_BUILTIN_BASES = (
    *(collections.OrderedDict, collections.defaultdict, collections.deque),
    *(dict, list, tuple, set, frozenset, int, float, complex, str, bytes),
)
# What Python itself writes into a class, and what only describes it.
_CLASS_METADATA = frozenset(
    (
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__abstractmethods__"),
        *("_abc_impl", "__orig_bases__", "__parameters__", "__dataclass_fields__", "__dataclass_params__"),
        *("__static_attributes__", "__firstlineno__", "__match_args__"),
    )
)
_BASE: Any = torch._C.TensorBase
_GET_TRAINS = _BASE.requires_grad.__get__
_GET_EXTRAS: tuple[Callable[[torch.Tensor], Any], ...] = (
    *(_BASE._backward_hooks.__get__, _BASE._post_accumulate_grad_hooks.__get__, operator.attrgetter("__dict__")),
)
_GLOBAL_HOOKS = tuple(name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks"))
_MOST_DEPTH = 40
_MOST_PIECES = 100_000
_MOST_ITEMS = 100_000
# Hashing this much takes about 20 ms, still far less than a trace.
_MOST_CONTENT_BYTES = 16 * 2**20
# Flag of a class in CPython: its objects' attributes lie in front of them.
_MANAGED_DICT = 1 << 4
# What the classes of libraries hold when nobody has replaced one of their functions by another library's.
_unpatched: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()
_slots_of: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


class Stamper:
    """Collects the stamp of everything that is added.

    Attributes:
        pieces: The stamp so far: a flat sequence, each value preceded by its kind.
    """

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self._seen: dict[tuple[int, bool], int] = {}
        self._modules_seen: set[int] = set()
        self._is_library: dict[type, bool] = {}  # classes that are stamped already
        self._searched: set[tuple[int, frozenset[str]]] = set()  # Python modules, and the names looked for
        self._kept: list[Any] = []  # objects made while stamping, so that no id is used twice
        self._by_value = True
        self._depth = 0

    def add(self, value: Any) -> None:
        """Stamp a value of any kind; the elements of tensors outside of modules count.

        Raises:
            NoStampError: It cannot be recognised again.
        """
        kind = type(value)
        if kind in PLAIN:
            self.pieces += (kind, value)
            return
        key = (id(value), self._by_value)
        order = self._seen.get(key)
        if order is not None:
            self.pieces += ("seen", order)
            return
        self._seen[key] = len(self._seen)
        self._kept.append(value)
        if self._depth == _MOST_DEPTH or len(self.pieces) > _MOST_PIECES:
            raise NoStampError("nested too deeply, or too large")
        self._depth += 1
        try:
            self._add_new(value, kind)
        finally:
            self._depth -= 1

    def add_batch(self, value: Any) -> None:
        """Stamp inputs or targets: the elements of their tensors do not count."""
        before, self._by_value = self._by_value, False
        try:
            self.add(value)
        finally:
            self._by_value = before

    def _add_new(self, value: Any, kind: type) -> None:
        known = _KINDS.get(kind)
        if known is not None:
            known(self, value)
        elif issubclass(kind, nn.Module):
            self._modules(value)
        elif issubclass(kind, torch.Tensor):
            self._tensor(value)
        elif issubclass(kind, type):
            self._class(value)
        elif issubclass(kind, types.ModuleType):
            self._python_module(value)
        elif issubclass(kind, _OPAQUE):
            self.pieces += (kind, value)
        elif not self._numpy(value, kind):
            self._object(value, kind)

    def _items(self, value: Any) -> None:
        kind = type(value)
        if len(value) > _MOST_ITEMS:
            raise NoStampError(f"{len(value)} items")
        kinds = tuple(map(type, value))
        if PLAIN.issuperset(kinds):
            self.pieces += (kind, kinds, tuple(value))
            return
        self.pieces += (kind, len(value))
        for item in value:
            self.add(item)

    def _mapping(self, value: Any) -> None:
        self.pieces.append(type(value))
        self._items(tuple(value))
        self._items(tuple(value.values()))

    def _tensor(self, tensor: torch.Tensor) -> None:
        if type(tensor) not in PLAIN_TENSORS:
            if not torch.nn.parameter.is_lazy(tensor):
                raise NoStampError(f"the inside of a {type(tensor).__name__} is not visible")
            self.pieces += (type(tensor), id(tensor), tensor.requires_grad, tensor.dtype)
            return
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
            raise NoStampError(f"a tensor of layout {tensor.layout}")
        self.pieces += (
            *(torch.Tensor, isinstance(tensor, nn.Parameter), tensor.shape, tensor.stride(), tensor.dtype),
            *(tensor.requires_grad, tensor.is_leaf, tensor.device, tensor.is_conj(), tensor.is_neg()),
        )
        for get in _GET_EXTRAS:
            self.add(get(tensor) or None)
        if self._by_value and not tensor.is_meta:
            if tensor.numel() * tensor.element_size() > _MOST_CONTENT_BYTES:
                raise NoStampError("a large tensor")
            plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            self.pieces.append(hashlib.sha256(plain.view(torch.uint8).numpy().tobytes()).digest())

    def _numpy(self, value: Any, kind: type) -> bool:
        """Stamp an array or scalar of numpy, by value; False for anything else."""
        numpy = sys.modules.get("numpy")
        if numpy is None or not issubclass(kind, numpy.ndarray | numpy.generic | numpy.dtype):
            return False
        if issubclass(kind, numpy.dtype):
            self.pieces += ("dtype", value.str, str(value))
        elif value.dtype.hasobject or value.nbytes > _MOST_CONTENT_BYTES or kind.__module__ != "numpy":
            raise NoStampError(f"an array of {value.dtype}")
        else:
            self.pieces += (kind, str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).digest())
        return True

    def _function(self, function: types.FunctionType) -> None:
        code = function.__code__
        self.pieces += (types.FunctionType, code)
        before, self._by_value = self._by_value, True
        try:
            self.add(function.__defaults__)
            self.add(function.__kwdefaults__)
            for cell in function.__closure__ or ():
                self.add(cell)
            if function.__dict__:
                self.add(function.__dict__)
            if not is_library_file(code.co_filename):
                self._globals(function.__globals__, code)
        finally:
            self._by_value = before

    def _globals(self, found: dict[str, Any], code: types.CodeType) -> None:
        names = _names(code)
        for name in names.variables:
            value = found.get(name, _MISSING)
            self.pieces.append(name)
            self._named(value, names.attributes)
        for name in names.imports:
            package = found.get("__package__") or ""
            for module in (sys.modules.get(name), sys.modules.get(f"{package}.{name}".rstrip("."))):
                self._named(_MISSING if module is None else module, names.attributes)

    def _named(self, value: Any, attributes: frozenset[str]) -> None:
        """A global; of a module the attributes that the code could take from it."""
        if value is _MISSING:
            self.pieces.append("missing")
        elif not isinstance(value, types.ModuleType):
            self.add(value)
        else:
            library = is_library_module(value.__name__)
            if library:
                self.add(value)
            key = (id(value), attributes)
            if key in self._searched:
                return
            self._searched.add(key)
            content = vars(value)
            for name in sorted(attributes & content.keys()):
                found = content[name]
                # What a library holds is its own, unless somebody replaced a function.
                if not library or isinstance(found, types.ModuleType) or _is_foreign(found):
                    self.pieces.append(name)
                    self._named(found, attributes)

    def _python_module(self, module: types.ModuleType) -> None:
        if not is_library_module(module.__name__):
            raise NoStampError(f"what is used of module {module.__name__} is not known")
        self.pieces.append(module)

    def _cell(self, cell: types.CellType) -> None:
        try:
            content = cell.cell_contents
        except ValueError:  # the name is not bound yet
            self.pieces.append("missing")
            return
        self.add(content)

    def _builtin(self, function: types.BuiltinFunctionType) -> None:
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            self.pieces.append(function)
        else:
            self.pieces += ("method", function.__name__)
            self.add(owner)

    def _class(self, kind: type) -> None:
        """A class with its bases; of a library's class only functions that are not the library's own."""
        before, self._by_value = self._by_value, True
        try:
            for base in kind.__mro__[:-1]:
                library = self._is_library.get(base)
                known = library is not None
                if library is None:
                    library = self._is_library[base] = is_library_class(base)
                self.pieces += (base,) if library else (base.__module__, base.__qualname__)
                if not library and not known:
                    self._own_class(base)
                elif not known and issubclass(base, nn.Module):
                    self._patches(base)
            if not is_library_class(type(kind)):
                self.add(type(kind))
        finally:
            self._by_value = before

    def _own_class(self, kind: type) -> None:
        for name, value in list(vars(kind).items()):
            if name not in _CLASS_METADATA:
                self.pieces.append(name)
                self.add(value)

    def _patches(self, kind: type) -> None:
        content = tuple(vars(kind).values())
        if _unpatched.get(kind) == content:
            return
        if not any(map(_is_foreign, content)):
            _unpatched[kind] = content
            return
        for name, value in vars(kind).items():
            if _is_foreign(value):
                self.pieces.append(name)
                self.add(value)

    def _object(self, value: Any, kind: type) -> None:
        """Any other object: its class, the content of a builtin that it derives from, and its attributes."""
        slots = _slots(kind)
        self.add(kind)
        if issubclass(kind, dict):
            self.add(dict(dict.items(value)))
        if issubclass(kind, collections.defaultdict):
            self.add(value.default_factory)
        iterables: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
        for base in iterables:
            if issubclass(kind, base):
                self._items(tuple(base.__iter__(value)))
        atoms: tuple[Any, ...] = (int, float, complex, str, bytes)
        for base in atoms:
            if issubclass(kind, base):
                self.pieces += (base, base.__repr__(value))
        self.add(getattr(value, "__dict__", None))
        for slot in slots:
            self.pieces.append(slot.__name__)
            try:
                content = slot.__get__(value, kind)
            except AttributeError:
                self.pieces.append("missing")
            else:
                self.add(content)

    def _modules(self, model: nn.Module) -> None:
        if id(model) in self._modules_seen:
            self.pieces += (nn.Module, id(model))
            return
        before, self._by_value = self._by_value, False
        tree = read_tree(model)
        self._modules_seen |= tree.identities
        self.pieces.append(tree.stamp)
        for value in itertools.chain(tree.classes, tree.others):
            self.add(value)
        # A tensor that needs no gradient has no hooks.
        trained = [*itertools.compress(tree.tensors, map(_GET_TRAINS, tree.tensors))]
        for get, tensors in zip(_GET_EXTRAS, (trained, trained, tree.tensors), strict=True):
            if any(map(get, tensors)):
                for tensor in tensors:
                    self.pieces.append(id(tensor))
                    self.add(get(tensor))
        self._by_value = before


def _parts(*names: str) -> Callable[[Stamper, Any], None]:
    """Stamps an object by these attributes, which hold all that it consists of."""

    def stamp(stamper: Stamper, value: Any) -> None:
        stamper.pieces.append(type(value))
        for name in names:
            stamper.add(getattr(value, name))

    return stamp


def _descriptor(stamper: Stamper, value: Any) -> None:
    stamper.pieces += ("descriptor", value.__name__)


def _reference(stamper: Stamper, value: weakref.ref[Any]) -> None:
    stamper.pieces.append(weakref.ref)
    stamper.add(value())


def _packed(stamper: Stamper, value: PackedSequence) -> None:
    # Its sizes are read as plain numbers, and nothing marks the profile as dependent on values.
    stamper.pieces += (PackedSequence, tuple(value.batch_sizes.tolist()))
    for tensor in (value.data, value.sorted_indices, value.unsorted_indices):
        stamper.add(tensor)


_KINDS: dict[type, Callable[[Stamper, Any], None]] = {
    **dict.fromkeys((list, tuple, set, frozenset, torch.Size, collections.deque), Stamper._items),
    **dict.fromkeys((dict, collections.OrderedDict), Stamper._mapping),
    types.FunctionType: Stamper._function,
    types.BuiltinFunctionType: Stamper._builtin,
    types.CellType: Stamper._cell,
    types.MemberDescriptorType: _descriptor,
    types.GetSetDescriptorType: _descriptor,
    types.MethodType: _parts("__func__", "__self__"),
    staticmethod: _parts("__func__"),
    classmethod: _parts("__func__"),
    property: _parts("fget", "fset", "fdel"),
    functools.cached_property: _parts("func"),
    functools.partial: _parts("func", "args", "keywords", "__dict__"),
    type(functools.lru_cache(lambda: None)): _parts("__wrapped__"),
    types.SimpleNamespace: _parts("__dict__"),
    slice: _parts("start", "stop", "step"),
    weakref.ref: _reference,
    PackedSequence: _packed,
}


class _Names:
    """Names that a function, with the functions inside it, looks up.

    Attributes:
        variables: Global variables.
        imports: Modules imported when it runs.
        attributes: Everything else, the attributes of modules among them.
    """

    def __init__(self, code: types.CodeType) -> None:
        variables: dict[str, None] = {}
        imports: dict[str, None] = {}
        attributes: set[str] = set(code.co_names)
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                variables[instruction.argval] = None
            elif instruction.opname == "IMPORT_NAME":
                imports[instruction.argval] = None
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                inner = _names(constant)
                variables.update(dict.fromkeys(inner.variables))
                imports.update(dict.fromkeys(inner.imports))
                attributes |= inner.attributes
        self.variables: tuple[str, ...] = tuple(variables)
        self.imports: tuple[str, ...] = tuple(imports)
        self.attributes: frozenset[str] = frozenset(attributes)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> _Names:
    return _Names(code)


def _slots(kind: type) -> tuple[Any, ...]:
    """Descriptors of the slots of a class.

    Raises:
        NoStampError: Its objects hold more than attributes, slots and the content of a known builtin: their size in
            memory tells.
    """
    found = _slots_of.get(kind)
    if found is None:
        base: type = next((base for base in _BUILTIN_BASES if issubclass(kind, base)), object)
        own = [part for part in kind.__mro__ if part not in base.__mro__]
        found = tuple(
            value for part in own for value in vars(part).values() if type(value) is types.MemberDescriptorType
        )
        pointers = len(found)
        pointers += kind.__dictoffset__ != base.__dictoffset__ and not kind.__flags__ & _MANAGED_DICT
        pointers += kind.__weakrefoffset__ > 0 and not base.__weakrefoffset__
        compiled = any(not part.__flags__ & HEAP_TYPE for part in own)
        if compiled or kind.__basicsize__ > base.__basicsize__ + 8 * pointers:
            raise NoStampError(f"the inside of a {kind.__name__} is not visible")
        _slots_of[kind] = found
    return found


def _is_foreign(value: Any) -> bool:
    return type(value) is types.FunctionType and not is_library_file(value.__code__.co_filename)


def global_hooks() -> tuple[Any, ...]:
    """Hooks that are called for every module, by where they are kept."""
    return tuple((name, hooks) for name in _GLOBAL_HOOKS if (hooks := getattr(torch_module, name)))
