"""Copies of models, inputs and functions, so that a trace never touches what the user holds."""

from __future__ import annotations

import copy
import copyreg
import enum
import io
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from torch.overrides import TorchFunctionMode

from trainpilot.errors import ModelError
from trainpilot.profiling.libraries import is_library_class
from trainpilot.profiling.randomness import is_generator
from trainpilot.profiling.reach import Reach, is_library, named_globals
from trainpilot.profiling.structure import inner_of_compiled, inner_of_parallel
from trainpilot.profiling.trees import PLAIN_TENSORS
from trainpilot.workload import ModelInputs

_ATOMIC = frozenset((int, float, complex, bool, str, bytes, type(None), type, object))
_SHARED = (type, types.ModuleType, enum.Enum, threading.Thread, torch.dtype, torch.device, torch.Size)
_LOCKS: dict[type, Callable[[], Any]] = {type(lock()): lock for lock in (threading.Lock, threading.RLock)}
_WEAK_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_RUNNING = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)


class ModelCopier:
    """Copies modules, tensors and functions consistently: what is shared in the original is shared in the copy.

    Modules are copied attribute by attribute, whatever copy protocol their class has. Other objects are copied by
    their own protocol, or attribute by attribute where that fails. Locks are made anew, open files become buffers in
    memory, and a running generator becomes one that raises. Threads and the objects that hold one, and what lives
    outside Python and has no copy protocol, are shared with the original. So are attributes of classes.

    The copier holds all copies: keep it as long as they are in use, since originals that are held weakly have copies
    that are held weakly.

    Args:
        convert: Gives the copy's tensor for an original one: same sizes, strides and dtype. Tensors that share a
            storage are kept tied here, so it is asked at most once for each storage.

    Attributes:
        generators: Copies of random generators of Python and numpy, in the order in which they were met.
    """

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._convert = convert
        self._memo: dict[int, Any] = {}  # as copy.deepcopy keeps it: original's id -> copy
        self._keep: list[Any] = []  # originals, so that no id is used twice
        self._bases: dict[int, torch.Tensor] = {}  # original storage -> converted tensor that covers it
        self._made: dict[int, torch.Tensor] = {}  # converted tensors by id
        self._reach = Reach()
        self.generators: list[Any] = []

    def fresh(self) -> ModelCopier:
        """A copier that converts tensors in the same way, and made no copies yet."""
        return ModelCopier(self._convert)

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of ``module``, every parameter, buffer and other tensor converted, hooks cut off from outside."""
        copied: nn.Module = self._value(module)
        return copied

    def tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy's tensor for ``tensor``: always the same one, a parameter for a parameter, with copied hooks."""
        known: torch.Tensor | None = self._memo.get(id(tensor))
        if known is not None:
            return known
        converted = self._convert_tied(tensor)
        if isinstance(tensor, nn.Parameter) and not is_lazy(tensor):
            converted = _as_parameter(converted, tensor)
        elif tensor.requires_grad and not is_lazy(tensor):
            converted = converted.detach().requires_grad_()
        self._remember(tensor, converted)
        self._made[id(converted)] = converted
        if isinstance(tensor, nn.Parameter) and not is_lazy(tensor):
            for name, value in vars(tensor).items():
                setattr(converted, name, self._value(value))
        if tensor.requires_grad and tensor.is_leaf:
            for hook in (tensor._backward_hooks or {}).values():
                converted.register_hook(self._value(hook))  # type: ignore[no-untyped-call]
            for hook in (tensor._post_accumulate_grad_hooks or {}).values():
                converted.register_post_accumulate_grad_hook(self._value(hook))  # type: ignore[no-untyped-call]
        return converted

    def made(self, tensor: torch.Tensor) -> bool:
        """True if ``tensor`` is a copy made here."""
        return self._made.get(id(tensor)) is tensor

    def inputs(self, inputs: ModelInputs) -> ModelInputs:
        """A copy of what a model is called with, containers and other objects included."""
        return ModelInputs(tuple(map(self._value, inputs.args)), {k: self._value(v) for k, v in inputs.kwargs.items()})

    def value(self, value: Any) -> Any:
        """A copy of targets, of a function or of any other object.

        A function gets copies of what its closure and defaults hold, and of the modules, tensors, mutable containers
        and functions that reach such among the globals that it names.
        """
        return self._value(value)

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMIC:
            return value
        known = self._memo.get(id(value))
        if known is not None:
            return known
        if kind in weakref.ProxyTypes:
            referent = value.__repr__.__self__
            return self._remember(value, weakref.proxy(self._value(referent)))
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, nn.Module):
            return self._module(value)
        if kind is dict or kind is OrderedDict:
            mapping = self._remember(value, kind())
            for key, item in value.items():
                mapping[self._value(key)] = self._value(item)
            return mapping
        if kind is list:
            items = self._remember(value, [])
            items.extend(map(self._value, value))
            return items
        if kind is tuple:
            copied = tuple(map(self._value, value))
            known = self._memo.get(id(value))  # copied meanwhile, if it leads back to itself
            return self._remember(value, copied) if known is None else known
        if isinstance(value, _SHARED):
            return value
        if kind is types.FunctionType:
            return self._function(value)
        if kind is types.MethodType:
            return self._method(value)
        if kind is types.BuiltinFunctionType:
            owner = value.__self__
            return value if owner is None or isinstance(owner, _SHARED) else getattr(self._value(owner), value.__name__)
        if isinstance(value, weakref.ref) or kind in _WEAK_MAPPINGS:
            return self._weak(value)
        return self._remember(value, self._special(value)) if _is_special(value) else self._object(value)

    def _module(self, module: nn.Module) -> nn.Module:
        compiled = inner_of_compiled(module)
        if compiled is not None:
            return self._remember(module, self._module(compiled))  # type: ignore[no-any-return]
        parallel = inner_of_parallel(module)
        if parallel is not None:
            return self._remember(module, _OneDevice(self._module(parallel)))  # type: ignore[no-any-return]
        known: nn.Module | None = self._memo.get(id(module))
        if known is not None:
            return known
        if isinstance(module, torch.jit.ScriptModule):
            return self._remember(module, _copied_script(module))  # type: ignore[no-any-return]
        kind = type(module)
        copied: nn.Module = self._remember(module, object.__new__(kind))
        self._attributes(module, copied)
        attributes = copied.__dict__
        for name, method in self._reach.methods(kind).items():
            if name not in attributes:
                attributes[name] = types.MethodType(self._value(method), copied)
        return copied

    def _attributes(self, original: Any, copied: Any) -> None:
        for name, value in getattr(original, "__dict__", {}).items():
            if name != "_compiled_call_impl":  # the copy of a module runs eagerly
                copied.__dict__[name] = self._value(value)
        for base in type(original).__mro__:
            if "__slots__" in vars(base):
                for slot in vars(base).values():
                    if isinstance(slot, types.MemberDescriptorType) and hasattr(original, slot.__name__):
                        slot.__set__(copied, self._value(slot.__get__(original)))

    def _method(self, method: types.MethodType) -> types.MethodType:
        owner, function = self._value(method.__self__), self._value(method.__func__)
        return method if owner is method.__self__ and function is method.__func__ else types.MethodType(function, owner)

    def _function(self, function: types.FunctionType) -> Any:
        original = getattr(function, "_torchdynamo_orig_callable", None)
        if original is not None:  # compiled: the copy runs as it was written
            return self._remember(function, self._value(original))
        if not self._reach.reaches(function):
            return function
        cells = [cell for cell in function.__closure__ or () if id(cell) not in self._memo]
        for cell in cells:
            self._remember(cell, types.CellType())
        closure = tuple(self._memo[id(cell)] for cell in function.__closure__ or ())
        found = function.__globals__
        library = is_library(function)
        if not library and id(found) not in self._memo:
            self._remember(found, dict(found))
        copied = types.FunctionType(
            function.__code__, found if library else self._memo[id(found)], function.__name__, None, closure or None
        )
        self._remember(function, copied)  # before anything that may lead back to it
        for cell in cells:
            try:
                self._memo[id(cell)].cell_contents = self._value(cell.cell_contents)
            except ValueError:  # the name is not bound yet
                continue
        if not library:
            for name, value in named_globals(function).items():
                copied.__globals__[name] = self._value(value)
        copied.__defaults__ = self._value(function.__defaults__)
        copied.__kwdefaults__ = self._value(function.__kwdefaults__)
        copied.__qualname__ = function.__qualname__
        copied.__module__ = function.__module__
        copied.__dict__.update(self._value(vars(function)))
        return copied

    def _weak(self, value: Any) -> Any:
        if isinstance(value, weakref.ref):
            referent = value()
            if referent is None:
                return value
            kind: Any = weakref.WeakMethod if isinstance(value, weakref.WeakMethod) else weakref.ref
            return self._remember(value, kind(self._value(referent)))
        mapping = self._remember(value, type(value)())
        for key, item in value.items():
            mapping[self._value(key)] = self._value(item)
        return mapping

    def _special(self, value: Any) -> Any:
        if isinstance(value, _RUNNING):
            return _Uncopied(type(value).__name__)
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if isinstance(value, io.IOBase):
            return _buffer(value)
        return _LOCKS[type(value)]()

    def _object(self, value: Any) -> Any:
        if any(isinstance(held, threading.Thread) for held in getattr(value, "__dict__", {}).values()):
            return value  # its state belongs to the thread, which only the original has
        if is_generator(value):
            self.generators.append(self._rebuilt(value))
            return self.generators[-1]
        known = len(self._memo)
        try:
            if hasattr(type(value), "__deepcopy__"):
                with _ConvertOnDeepcopy(self):
                    return self._remember(value, value.__deepcopy__(self._memo))
            return self._rebuilt(value)
        except Exception:  # noqa: BLE001 - whatever a foreign copy protocol raises, its attributes can be copied
            for key in list(self._memo)[known:]:
                del self._memo[key]  # copies that are not complete
            return self._by_attributes(value)

    def _rebuilt(self, value: Any) -> Any:
        """A copy made as ``copy.deepcopy`` makes it, from what ``__reduce_ex__`` tells."""
        kind = type(value)
        reducer = copyreg.dispatch_table.get(kind)
        noted = "__slotnames__" in vars(kind)
        reduced: Any = value.__reduce_ex__(4) if reducer is None else reducer(value)
        if not noted and "__slotnames__" in vars(kind) and not is_library_class(kind):
            type.__delattr__(kind, "__slotnames__")  # copyreg leaves a note there
        if isinstance(reduced, str):  # a global
            return value
        parts: list[Any] = [*reduced]
        make, arguments, state, items, pairs, set_state = parts + [None] * (6 - len(parts))
        copied = self._remember(value, make(*map(self._value, arguments)))
        if state is not None:
            state = self._value(state)
            if set_state is not None:
                set_state(copied, state)
            elif hasattr(copied, "__setstate__"):
                copied.__setstate__(state)
            else:
                attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
                copied.__dict__.update(attributes or {})
                for name, item in (slots or {}).items():
                    object.__setattr__(copied, name, item)
        for item in items or ():
            copied.append(self._value(item))
        for key, item in pairs or ():
            copied[self._value(key)] = self._value(item)
        return copied

    def _by_attributes(self, value: Any) -> Any:
        try:
            copied = object.__new__(type(value))
        except TypeError:  # an object from outside Python
            return self._remember(value, value)
        self._remember(value, copied)
        self._attributes(value, copied)
        return copied

    def _remember(self, original: Any, copied: Any) -> Any:
        self._memo[id(original)] = copied
        self._keep.append(original)
        return copied

    def _convert_tied(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided or type(tensor) not in PLAIN_TENSORS:
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


class _OneDevice(nn.Module):
    """Stands for a data-parallel wrapper in a copy, which runs on one device."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _Uncopied:
    """Stands for a running generator or coroutine in a copy."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __iter__(self) -> _Uncopied:
        return self

    def __next__(self) -> Any:
        return self.send()

    def send(self, *_values: Any) -> Any:
        raise ModelError(
            f"the step advances a {self._kind} that was made before, which cannot be copied and would not be at the "
            "same place afterwards: hold a list or an iterator over one, or make it inside the step"
        )

    __anext__ = __await__ = throw = send


def fake_converter(fake_mode: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Convert to fake tensors on the CPU, whatever the original's device; allocates nothing."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout != torch.strided and not tensor.is_nested:
            raise UnsupportedFakeTensorException(f"a fake tensor of layout {tensor.layout} stores no elements")
        if type(tensor) not in PLAIN_TENSORS or tensor.is_nested:
            try:
                return fake_mode.from_tensor(tensor, static_shapes=True)  # type: ignore[no-any-return]
            except Exception as error:
                raise UnsupportedFakeTensorException(f"a tensor of layout {tensor.layout}: {error!r}") from error
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


def _is_special(value: Any) -> bool:
    return type(value) in _LOCKS or isinstance(value, (*_RUNNING, torch.Generator, io.IOBase))


def _buffer(file: io.IOBase) -> Any:
    """A buffer in memory with the content of an open file, at the same position; empty for one without."""
    kind = io.StringIO if isinstance(file, io.TextIOBase) else io.BytesIO
    if file.closed or not (file.readable() and file.seekable()):
        return kind()
    position = file.tell()
    try:
        file.seek(0)
        buffer: Any = kind(file.read())
        # The position of a text file is not that of its text.
        file.seek(position)
        rest = len(file.read())
    finally:
        file.seek(position)
    buffer.seek(len(buffer.getvalue()) - rest)
    return buffer


def _as_parameter(converted: torch.Tensor, original: nn.Parameter) -> torch.Tensor:
    if type(converted) in PLAIN_TENSORS:
        parameter: torch.Tensor = nn.Parameter(converted.detach(), requires_grad=original.requires_grad)
    else:  # a tensor subclass (a fake tensor) is marked instead of wrapped
        parameter = converted.detach().requires_grad_(original.requires_grad)
        parameter._is_param = True
    return parameter
