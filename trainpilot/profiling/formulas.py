"""FLOPs of matrix products, convolutions, attention and recurrent layers, and the sizes that decide their speed.

Convention: one multiply-add is 2 FLOPs; a complex multiply-add is 4 real multiplications and 4 additions, hence 8.
A complex convolution is counted as PyTorch dispatches it, as 3 real ones (Gauss's trick), hence 6.
Only matrix products, convolutions, attention and recurrent layers are counted; biases, activations, norms and other
elementwise work are 0 FLOPs, their cost being traffic. Products with a vector (``mv``, ``dot``), ``bilinear``,
``cdist``, Fourier transforms and linear algebra lie outside the convention and are reported as uncounted.

Shapes are those of PyTorch's own operator signatures (``torch.ops.aten.<name>``); positions of arguments below are
positions in those signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, UnsupportedFakeTensorException

Sizes = dict[str, int]


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatch: the operator's arguments and what it returned."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    out: Any


@dataclass(frozen=True)
class Formula:
    """A formula, ``count(call) -> (FLOPs, sizes)``, and the class of the operators that it counts."""

    op_class: str
    count: Callable[[Call], tuple[int, Sizes]]


def _multiply_adds(count: int, tensor: Any) -> int:
    """FLOPs of ``count`` multiply-adds in the dtype of ``tensor``."""
    return (8 if tensor.is_complex() else 2) * count


def _product(m: int, n: int, k: int, batch: int, tensor: Any) -> tuple[int, Sizes]:
    return _multiply_adds(batch * m * n * k, tensor), {"m": m, "n": n, "k": k, "batch": batch}


class UncountedError(Exception):
    """The formula of an operator does not cover its operands."""


def stored_elements(tensor: Any) -> int:
    """Elements that a tensor stores: all of a dense one, the specified ones of a sparse one."""
    if tensor.layout == torch.strided:
        return int(tensor.numel())
    if isinstance(tensor, FakeTensor):
        raise UnsupportedFakeTensorException(f"a fake tensor of layout {tensor.layout} stores no elements")
    if tensor.layout == torch.sparse_coo:
        return int(tensor._nnz() * prod(tensor.shape[tensor.sparse_dim() :]))
    return int(tensor.values().numel())


def _mm(call: Call, at: int = 0) -> tuple[int, Sizes]:
    """``(m, k) @ (k, n)`` at positions ``at`` and ``at + 1``.

    Each stored element of a sparse operand meets one row or column of the dense one.
    """
    left, right = call.args[at : at + 2]
    (m, k), (_, n) = left.shape, right.shape
    flops, sizes = _product(m, n, k, 1, left)
    if left.layout != torch.strided and right.layout != torch.strided:
        raise UncountedError
    if left.layout != torch.strided:
        return _multiply_adds(stored_elements(left) * n, left), sizes
    if right.layout != torch.strided:
        return _multiply_adds(m * stored_elements(right), right), sizes
    return flops, sizes


def _addmm(call: Call) -> tuple[int, Sizes]:
    return _mm(call, at=1)


def _bmm(call: Call, at: int = 0) -> tuple[int, Sizes]:
    """``(batch, m, k) @ (batch, k, n)``."""
    (batch, m, k), (_, _, n) = call.args[at].shape, call.args[at + 1].shape
    return _product(m, n, k, batch, call.args[at])


def _baddbmm(call: Call) -> tuple[int, Sizes]:
    return _bmm(call, at=1)


def _width(tensor: Any) -> int:
    """Size of the last dimension; of a nested tensor, the largest."""
    if tensor.is_nested:
        return max(tensor._nested_tensor_size()[:, -1].tolist(), default=0)
    return tensor.shape[-1] if tensor.ndim else 1


def _linear(call: Call) -> tuple[int, Sizes]:
    """``(..., k)`` times a weight whose other size is the last one of the output."""
    k = _width(call.args[0])
    n = _width(call.out)
    return _product(call.out.numel() // n if n else 0, n, k, 1, call.args[0])


def _grouped_mm(call: Call) -> tuple[int, Sizes]:
    """Mixture-of-experts product: each row meets one expert, so experts do not multiply the work."""
    a, b = call.args[0], call.args[1]
    if a.ndim == 3 and b.ndim == 3:
        return _bmm(call)
    return _product(a.shape[-2], b.shape[-1], a.shape[-1], 1, a)


def _convolution(
    inputs: Any, weight: Any, output: Any, stride: Sequence[int], groups: int, transposed: bool
) -> tuple[int, Sizes]:
    """FLOPs of one forward convolution.

    Each output position (each input position, if transposed) meets every element of the weight once, and the weight
    of shape (cout, cin / groups, *kernel), transposed (cin, cout / groups, *kernel), holds the groups already.
    """
    kernel = prod(weight.shape[2:])
    positions = inputs.shape[0] * prod((inputs if transposed else output).shape[2:])
    cin, cout = inputs.shape[1], output.shape[1]
    sizes = {
        "n": inputs.shape[0],
        "cin": cin,
        "cout": cout,
        "groups": groups,
        "kernel": kernel,
        "stride": prod(stride),
        "in_spatial": prod(inputs.shape[2:]),
        "out_spatial": prod(output.shape[2:]),
        "dimensions": weight.ndim - 2,
        "transposed": int(transposed),
    }
    return _multiply_adds(positions * weight.numel(), inputs), sizes


def _quantised_convolution(call: Call) -> tuple[int, Sizes]:
    """Inputs and weights that only the packed operand holds."""
    inputs, packed = call.args[:2]
    weight, _bias = packed.unpack()
    stride, groups, transposed = packed.stride(), packed.groups(), bool(packed.transpose())
    return _convolution(inputs, weight, call.out, stride, groups, transposed)


def _spread(value: Sequence[int], dimensions: int) -> Sequence[int]:
    return value if len(value) == dimensions else [value[0]] * dimensions


def _convolution_forward(call: Call) -> tuple[int, Sizes]:
    inputs, weight, _bias, stride, _padding, _dilation, transposed, _output_padding, groups = call.args[:9]
    return _convolution(inputs, weight, call.out, _spread(stride, weight.ndim - 2), groups, transposed)


def _convolution_backward(call: Call) -> tuple[int, Sizes]:
    """The gradients of input and weight each cost one forward pass; only those asked for are counted."""
    grad, inputs, weight, _bias, stride, _padding, _dilation, transposed, _output_padding, groups, mask = call.args[:11]
    flops, sizes = _convolution(inputs, weight, grad, _spread(stride, weight.ndim - 2), groups, transposed)
    asked = {"grad_input": int(mask[0]), "grad_weight": int(mask[1])}
    return flops * sum(asked.values()), {**sizes, **asked}


def _attention_sizes(query: Any, key: Any, value: Any, causal: bool) -> tuple[int, int, int, Sizes]:
    """Score count, and the head sizes of key and value, of (batch, heads, length, head size) operands."""
    *batch, heads, length, head_size = query.shape
    key_length, value_size = key.shape[-2], value.shape[-1]
    sizes = {
        "batch": prod(batch),
        "heads": heads,
        "length": length,
        "key_length": key_length,
        "head_size": head_size,
        "causal": int(causal),
    }
    return prod(batch) * heads * length * key_length, head_size, value_size, sizes


def _attention_forward(call: Call) -> tuple[int, Sizes]:
    """Scores Q K^T and their product with V. A causal mask is not subtracted (as is usual); the sizes tell it."""
    query, key, value = call.args[:3]
    causal = bool(call.args[4] if len(call.args) > 4 else call.kwargs.get("is_causal", False))
    scores, head_size, value_size, sizes = _attention_sizes(query, key, value, causal)
    return _multiply_adds(scores * (head_size + value_size), query), sizes


def _attention_backward(call: Call) -> tuple[int, Sizes]:
    """Five products: the scores again (they were not kept), and the gradients of V, scores, Q and K."""
    query, key, value = call.args[1:4]
    causal = bool(call.args[7] if len(call.args) > 7 else call.kwargs.get("is_causal", False))
    scores, head_size, value_size, sizes = _attention_sizes(query, key, value, causal)
    return _multiply_adds(scores * (3 * head_size + 2 * value_size), query), sizes


def _sequences(tensor: Any) -> tuple[int, int, int]:
    """Batch, longest length and tokens in all of (batch, length, width), which may be a nested tensor."""
    if tensor.is_nested:
        lengths = tensor._nested_tensor_size()[:, 0].tolist()
        return len(lengths), max(lengths, default=0), sum(lengths)
    batch, length = tensor.shape[:2]
    return batch, length, batch * length


def _multi_head_attention(query: Any, key: Any, width: int, heads: int) -> tuple[int, Sizes]:
    """Projections of query, key, value and output, and the attention between them; operands (batch, length, width).

    Of nested operands, the kernel projects the tokens that are there and pads the heads to the longest sequence.
    """
    batch, length, tokens = _sequences(query)
    _, key_length, key_tokens = _sequences(key)
    projections = width * width * (2 * tokens + 2 * key_tokens)
    attention = 2 * batch * length * key_length * width
    sizes = {
        "batch": batch,
        "heads": heads,
        "length": length,
        "key_length": key_length,
        "head_size": width // heads,
        "causal": 0,
    }
    return _multiply_adds(projections + attention, query), sizes


def _native_multi_head_attention(call: Call) -> tuple[int, Sizes]:
    query, key, _value, width, heads = call.args[:5]
    return _multi_head_attention(query, key, width, heads)


def _transformer_encoder_layer(call: Call) -> tuple[int, Sizes]:
    """Multi-head attention and the two matrices of the feed-forward part (positions 14 and 16)."""
    source, width, heads = call.args[:3]
    flops, sizes = _multi_head_attention(source, source, width, heads)
    _, _, positions = _sequences(source)
    feed_forward = call.args[14].numel() + call.args[16].numel()
    sizes["feed_forward"] = call.args[14].shape[0]
    return flops + _multiply_adds(positions * feed_forward, source), sizes


def _recurrent(inputs: Any, input_weight: Any, hidden_weight: Any) -> tuple[int, Sizes]:
    """One layer in one direction: at each step both weight matrices meet the whole batch."""
    steps, batch, width = inputs.shape
    hidden = hidden_weight.shape[1]
    sizes = {
        "steps": steps,
        "batch": batch,
        "input": width,
        "hidden": hidden,
        "gates": hidden_weight.shape[0] // hidden,
    }
    return _multiply_adds(steps * batch * (input_weight.numel() + hidden_weight.numel()), inputs), sizes


def _rnn_layer(call: Call) -> tuple[int, Sizes]:
    return _recurrent(call.args[0], call.args[1], call.args[2])


def _rnn_layer_backward(call: Call) -> tuple[int, Sizes]:
    """Gradients of data and weights; the fused kernel computes both, asked for or not."""
    flops, sizes = _recurrent(call.args[0], call.args[1], call.args[2])
    return 2 * flops, sizes


def _lookup(indices: Any, width: int, vocabulary: int) -> tuple[int, Sizes]:
    return 0, {"rows": indices.numel(), "width": width, "vocabulary": vocabulary}


def _embedding(call: Call) -> tuple[int, Sizes]:
    weight, indices = call.args[:2]
    return _lookup(indices, prod(weight.shape[1:]), weight.shape[0])


def _embedding_backward(call: Call) -> tuple[int, Sizes]:
    grad, indices, vocabulary = call.args[:3]
    return _lookup(indices, grad.shape[-1], vocabulary)


def _embedding_bag_backward(call: Call) -> tuple[int, Sizes]:
    # grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, ...
    return _lookup(call.args[1], call.args[0].shape[-1], call.args[6])


def _embedding_bag_dense_backward(call: Call) -> tuple[int, Sizes]:
    # as above, without offsets
    return _lookup(call.args[1], call.args[0].shape[-1], call.args[5])


FORMULAS: Mapping[str, Formula] = {
    **dict.fromkeys(("aten.mm", "aten._int_mm", "aten._scaled_mm"), Formula("matmul", _mm)),
    **dict.fromkeys(("aten.addmm", "aten._addmm_activation", "aten._sparse_addmm"), Formula("matmul", _addmm)),
    "aten.bmm": Formula("matmul", _bmm),
    **dict.fromkeys(("aten.baddbmm", "aten.addbmm"), Formula("matmul", _baddbmm)),
    **dict.fromkeys(
        (
            "aten.linear",
            "aten._weight_int8pack_mm",
            "aten._weight_int4pack_mm",
            "aten._weight_int4pack_mm_for_cpu",
            "quantized.linear",
            "quantized.linear_relu",
            "quantized.linear_dynamic",
            "quantized.linear_relu_dynamic",
            "quantized.linear_dynamic_fp16",
        ),
        Formula("matmul", _linear),
    ),
    "aten._grouped_mm": Formula("matmul", _grouped_mm),
    **dict.fromkeys(("aten.convolution", "aten._convolution"), Formula("conv", _convolution_forward)),
    **dict.fromkeys(
        tuple(f"quantized.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_relu", "_dynamic")),
        Formula("conv", _quantised_convolution),
    ),
    "aten.convolution_backward": Formula("conv", _convolution_backward),
    "aten._scaled_dot_product_flash_attention_for_cpu": Formula("attention", _attention_forward),
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": Formula("attention", _attention_backward),
    "aten._native_multi_head_attention": Formula("attention", _native_multi_head_attention),
    "aten._transformer_encoder_layer_fwd": Formula("attention", _transformer_encoder_layer),
    "aten.mkldnn_rnn_layer": Formula("rnn", _rnn_layer),
    "aten.mkldnn_rnn_layer_backward": Formula("rnn", _rnn_layer_backward),
    **dict.fromkeys(
        ("aten.embedding", "aten._embedding_bag", "aten._embedding_bag_forward_only"), Formula("embedding", _embedding)
    ),
    "aten.embedding_dense_backward": Formula("embedding", _embedding_backward),
    "aten._embedding_bag_backward": Formula("embedding", _embedding_bag_backward),
    "aten._embedding_bag_dense_backward": Formula("embedding", _embedding_bag_dense_backward),
}


def sizes_of_plain(operands: Sequence[Any]) -> Sizes:
    """Sizes of an operator whose cost is traffic: elements of its largest operand, and of the last dimension."""
    largest = max(operands, key=lambda tensor: tensor.numel(), default=None)
    if largest is None:
        return {}
    return {"elements": largest.numel(), "last": _width(largest)}
