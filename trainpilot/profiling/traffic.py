"""Bytes that one dispatch reads and writes.

The rule: every tensor argument is read once and every new output is written once. Dimensions of stride 0 (expanded
or broadcast operands) are one element in memory. Views and allocations move nothing. The exceptions, each below, are
operators that touch only a part of an argument, or that write to an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from trainpilot.profiling.formulas import Call
from trainpilot.profiling.workspace import saved_workspace_bytes

if TYPE_CHECKING:
    from trainpilot.profiling.operators import OpKind


def size_in_memory(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor."""
    if tensor.layout != torch.strided:
        return sum(part.numel() * part.element_size() for part in _sparse_parts(tensor))
    if tensor.is_nested:  # has neither one shape nor strides
        return tensor.numel() * tensor.element_size()
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride != 0:
            count *= size
    return count * tensor.element_size() if tensor.numel() else 0


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Tensors among operator arguments, which nest in lists and tuples at most."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def traffic(kind: OpKind, call: Call) -> tuple[int, int]:
    """Bytes (read, written) of one dispatch."""
    if not kind.moves_data:
        return 0, 0
    special = _SPECIAL.get(kind.base)
    if special is not None:
        return special(call)
    if kind.base.endswith("_like") or kind.base.startswith("new_"):  # the argument only tells the shape
        return 0, _size_of_outputs(call)
    read = sum(map(size_in_memory, tensors_in(call.args)))
    read += sum(map(size_in_memory, tensors_in(call.kwargs.values())))
    if not kind.mutated:
        return read, _size_of_outputs(call)
    changed = list(tensors_in(call.args[position] for position in kind.mutated if position < len(call.args)))
    changed += tensors_in(value for name, value in call.kwargs.items() if name == "out")
    written = sum(map(size_in_memory, changed))
    if kind.overwrites or "out" in call.kwargs:
        read -= written
    new = [out for out in _outputs(call) if all(out is not tensor for tensor in changed)]
    return read, written + sum(map(size_in_memory, new))


def _outputs(call: Call) -> Iterator[torch.Tensor]:
    return tensors_in((call.out,))


def _size_of_outputs(call: Call) -> int:
    return sum(map(size_in_memory, _outputs(call)))


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


def _rows_read(call: Call) -> tuple[int, int]:
    """Lookup: as many elements of the source are read as are written, plus the indices."""
    written = _size_of_outputs(call)
    return written + sum(map(size_in_memory, tensors_in(call.args[1:]))), written


def _embedding(call: Call) -> tuple[int, int]:
    weight, indices = call.args[:2]
    row = prod(weight.shape[1:]) * weight.element_size()
    others = sum(map(size_in_memory, tensors_in(call.args[1:])))
    return indices.numel() * row + others, _size_of_outputs(call)


def _rows_written(call: Call) -> tuple[int, int]:
    """Scatter in place: only the rows that the values cover are written."""
    values = max(tensors_in(call.args[1:]), key=lambda tensor: tensor.numel() * tensor.element_size(), default=None)
    read = sum(map(size_in_memory, tensors_in(call.args[1:])))
    return read, 0 if values is None else values.numel() * call.args[0].element_size()


def _rows_accumulated(call: Call) -> tuple[int, int]:
    """Scatter-add in place: the rows that the values cover are read and written."""
    read, written = _rows_written(call)
    return read + written, written


def _index_put(call: Call) -> tuple[int, int]:
    accumulate = call.args[3] if len(call.args) > 3 else call.kwargs.get("accumulate", False)
    if call.out is not call.args[0]:  # the functional form copies the whole tensor first
        read, written = _rows_written(call)
        whole = size_in_memory(call.args[0])
        return read + whole, written + whole
    return _rows_accumulated(call) if accumulate else _rows_written(call)


def _scatter(call: Call) -> tuple[int, int]:
    whole = 0 if call.out is call.args[0] else size_in_memory(call.args[0])
    read, written = _rows_accumulated(call)
    return read + whole, written + whole


def _convolution_backward(call: Call) -> tuple[int, int]:
    grad, inputs, weight = (size_in_memory(tensor) for tensor in call.args[:3])
    mask = call.args[10]
    read = grad + (weight if mask[0] else 0) + (inputs if mask[1] else 0)
    return read, _size_of_outputs(call)


def _recurrent(call: Call) -> tuple[int, int]:
    """Weights are read at every step in principle, but stay in the cache; the saved workspace is written as well."""
    read = sum(map(size_in_memory, tensors_in(call.args)))
    written = _size_of_outputs(call)
    if any(out.numel() == 0 for out in _outputs(call)):  # a fake workspace
        written += saved_workspace_bytes(call.args)
    return read, written


def _recurrent_backward(call: Call) -> tuple[int, int]:
    read = sum(map(size_in_memory, tensors_in(call.args)))
    if call.args[-1].numel() == 0:
        read += saved_workspace_bytes(call.args)
    return read, _size_of_outputs(call)


_SPECIAL: dict[str, Callable[[Call], tuple[int, int]]] = {
    "index": _rows_read,
    "_unsafe_index": _rows_read,
    "index_select": _rows_read,
    "gather": _rows_read,
    "take": _rows_read,
    "embedding": _embedding,
    "_embedding_bag": _embedding,
    "_embedding_bag_forward_only": _embedding,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "_index_put_impl": _index_put,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "index_add": _scatter,
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _recurrent,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
}
