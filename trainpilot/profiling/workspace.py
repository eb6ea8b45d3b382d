"""Memory that operators hold and that no tensor of the trace shows: reordered operands, scratch and saved gates.

Formulas follow what oneDNN allocates through PyTorch on x86 (PyTorch 2.10 to 2.13), read off the allocator's events:
a convolution reorders its operands into blocked layouts and its result back, so operands and result exist twice for
a while; a recurrent layer saves gates and states in a workspace that lives until the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainpilot.profiling.operators import OpKind

_PAGE = 4096  # oneDNN starts each part of a recurrent workspace on a page
_LINE = 64  # and each row of it on a cache line
_SMALL_IMAGE = 2  # width in pixels


def workspace_bytes(kind: OpKind, sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    """Bytes that an operator allocates while it runs and frees before it returns.

    Args:
        kind: The operator.
        sizes: Its sizes, as its formula gives them.
        args: Its positional arguments.
    """
    formula = _WORKSPACES.get(kind.base)
    return 0 if formula is None else formula(sizes, args)


def saved_workspace_bytes(args: Sequence[Any]) -> int:
    """Bytes of the workspace that a recurrent layer returns and keeps for its backward pass.

    Fake tensors show it with no elements. It holds the gates and the hidden state of each step, and the states that
    enter and leave each step: three kinds in rows that fit input and hidden state, two in rows of the hidden state.

    Args:
        args: Positional arguments of ``aten.mkldnn_rnn_layer`` or its backward form, which start alike.
    """
    steps, batch, width = args[0].shape
    itemsize = args[0].element_size()
    hidden = args[2].shape[1]
    rows = steps * batch * itemsize
    states = 2 * (steps + 1) * batch * itemsize
    parts = (
        rows * _row_length(args[2].shape[0], itemsize),
        rows * _row_length(hidden, itemsize),
        *[states * _row_length(max(width, hidden), itemsize)] * 3,
        *[states * hidden] * 2,
    )
    return sum(-(-part // _PAGE) * _PAGE for part in parts)


def _row_length(elements: int, itemsize: int) -> int:
    """Elements of a padded row: whole cache lines, and no multiple of 256 elements, which would alias in the cache."""
    line = _LINE // itemsize
    padded = -(-elements // line) * line
    return padded + line if padded % 256 == 0 else padded


def _convolution_sizes(sizes: Mapping[str, int], weight: torch.Tensor) -> tuple[int, int, int]:
    """Bytes of input, weight and output."""
    itemsize = weight.element_size()
    inputs = sizes["n"] * sizes["cin"] * sizes["in_spatial"] * itemsize
    outputs = sizes["n"] * sizes["cout"] * sizes["out_spatial"] * itemsize
    return inputs, weight.numel() * itemsize, outputs


def _data_gradient(source: int, weight: int, result: int, sizes: Mapping[str, int]) -> int:
    """Scratch of the gradient by the input, which is also the forward pass of a transposed convolution."""
    strided = sizes["stride"] > 1 and sizes["groups"] == 1
    return max(source + weight, 2 * result if strided else result)


def _convolution(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    inputs, weight, outputs = _convolution_sizes(sizes, args[1])
    if sizes["transposed"]:
        return _data_gradient(inputs, weight, outputs, sizes)
    return max(inputs + weight, outputs)


def _convolution_backward(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    inputs, weight, outputs = _convolution_sizes(sizes, args[2])
    by_input = by_weight = 0
    if sizes["grad_input"]:
        # The gradient by the weight is not allocated yet.
        later = weight if sizes["grad_weight"] else 0
        if sizes["transposed"]:
            by_input = max(outputs + weight, inputs) - later
        else:
            by_input = _data_gradient(outputs, weight, inputs, sizes) - later
    if sizes["grad_weight"]:
        by_weight = max(inputs + outputs, weight)
        if sizes["out_spatial"] <= _SMALL_IMAGE ** sizes["dimensions"] and sizes["kernel"] > 1 and sizes["n"] > 1:
            # Images too small for the blocked kernel: each thread sums up four gradients of its own.
            by_weight = max(by_weight, 4 * torch.get_num_threads() * weight)
    return max(by_input, by_weight, 0)


def _recurrent(sizes: Mapping[str, int], args: Sequence[Any], weights: int) -> int:
    """Reordered weights and the gates before their nonlinearity."""
    itemsize: int = args[0].element_size()
    elements: int = args[1].numel() + args[2].numel()
    gates = sizes["steps"] * sizes["batch"] * _row_length(sizes["gates"] * sizes["hidden"], itemsize)
    return (weights * elements + gates) * itemsize


def _recurrent_forward(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    return _recurrent(sizes, args, 1)


def _recurrent_backward(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    return _recurrent(sizes, args, 2)


_WORKSPACES: Mapping[str, Callable[[Mapping[str, int], Sequence[Any]], int]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _recurrent_forward,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
}
