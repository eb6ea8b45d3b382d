"""Walking nested inputs and outputs: dicts, lists, tuples, named tuples, dataclasses, and anything else as a leaf."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainpilot.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn.utils.rnn import PackedSequence


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """What a model is called with: ``model(*args, **kwargs)``.

    Needed only where positional and keyword arguments are mixed; otherwise a tensor, a tuple of positional
    arguments or a dict of keyword arguments says the same.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> ModelInputs:
        """Read ``value`` as the design's input convention.

        Raises:
            UsageError: A dict has a key that is no argument name.
        """
        if isinstance(value, ModelInputs):
            return value
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return cls(args=value)
        if isinstance(value, Mapping):
            wrong = [key for key in value if not isinstance(key, str)]
            if wrong:
                raise UsageError(f"example inputs: a dict holds keyword arguments, but {wrong[0]!r} is not a name")
            return cls(kwargs=dict(value))
        return cls(args=(value,))


def tensor_leaves(value: Any) -> Iterator[Tensor]:
    """Yield every tensor inside ``value``, in order."""
    if value is None:  # the common case of a model named in words, which must not load torch
        return
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, ModelInputs):
        yield from tensor_leaves(value.args)
        yield from tensor_leaves(value.kwargs)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensor_leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensor_leaves(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensor_leaves(getattr(value, field.name, None))


def packed_sequences(value: Any) -> Iterator[PackedSequence]:
    """Yield every packed sequence among the arguments, lists, tuples and mappings inside ``value``."""
    if value is None:
        return
    from torch.nn.utils.rnn import PackedSequence

    if isinstance(value, PackedSequence):
        yield value
    elif isinstance(value, ModelInputs):
        yield from packed_sequences((*value.args, *value.kwargs.values()))
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from packed_sequences(item)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a copy of ``value`` with ``function`` applied to every tensor; other leaves pass through untouched."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, ModelInputs):
        return ModelInputs(map_tensors(function, value.args), map_tensors(function, value.kwargs))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tensors(function, item) for item in value)
    if type(value) is dict:
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, Mapping):
        try:
            return type(value)({key: map_tensors(function, item) for key, item in value.items()})  # type: ignore[call-arg]
        except TypeError:  # a mapping with a constructor of its own
            return {key: map_tensors(function, item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: map_tensors(function, getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **changed)
    return value


def batch_size_of(value: Any) -> int | None:
    """Sequences in the first packed sequence, else the size of the first dimension of the first tensor, or None."""
    for packed in packed_sequences(value):
        return int(packed.batch_sizes[0])
    return next((int(leaf.size(0)) for leaf in tensor_leaves(value) if leaf.ndim > 0), None)


def signature(value: Any) -> list[list[Any]]:
    """Shapes and dtypes of all tensors inside ``value``, as JSON: ``[[shape, dtype], ...]``."""
    return [[list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in tensor_leaves(value)]
