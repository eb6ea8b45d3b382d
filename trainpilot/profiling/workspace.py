"""Memory that operators hold and that no tensor of the trace shows: reordered operands, scratch and saved gates.

Formulas follow what oneDNN allocates through PyTorch on x86 (PyTorch 2.10 to 2.13), read off the allocator's events:
a convolution reorders its operands into blocked layouts and its result back, so operands and result exist twice for
a while; a recurrent layer saves gates and states in a workspace that lives until the backward pass. Where oneDNN has
no direct kernel, it unrolls the input into columns (im2col), as PyTorch's own kernels do, which take the types and
shapes that oneDNN does not. When that is depends on the instruction set; the limits here are those of AVX2, and on
other processors the direct kernels are taken for granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from trainpilot.profiling.operators import OpKind

_PAGE = 4096  # oneDNN starts each part of a recurrent workspace on a page
_LINE = 64  # and each row of it on a cache line
_SMALL_IMAGE = 2  # width in pixels
_VECTOR = 8  # float32 values of AVX2
# Beyond these, direct kernels of oneDNN for AVX2 do not go: padding of the forward pass, and width of the kernel in the
# gradient by the weight.
_PADDING = 3
_PADDING_DEPTHWISE = 4
_WIDTH = 14
_WIDTH_DEPTHWISE = 3
_VOLUME = 3  # dimensions that have no direct kernel for that gradient
_FLAT_CHANNELS = 3
_L2_CACHE = 1 << 20  # bytes per core, which blocks of columns are made to fit
_MOST_COLUMNS = int(0.88 * _L2_CACHE)
_ONE_THREAD_COLUMNS = _L2_CACHE // 2


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


def kept_bytes(base: str, args: Sequence[Any]) -> int:
    """Bytes beyond its one element that the result of a reduced loss keeps: it is the unreduced one, made small."""
    return _reduced_loss({}, args) if base in ("mse_loss", "smooth_l1_loss") else 0


def _row_length(elements: int, itemsize: int) -> int:
    """Elements of a padded row: whole cache lines, and no multiple of 256 elements, which would alias in the cache."""
    line = _LINE // itemsize
    padded = -(-elements // line) * line
    return padded + line if padded % 256 == 0 else padded


@dataclass(frozen=True)
class _Convolution:
    """One convolution, forward or backward, with sizes in bytes.

    Attributes:
        backend: Which of its kernels PyTorch takes, e.g. ``Mkldnn`` or ``Slow2d``.
        inputs: Input.
        weight: Weight.
        outputs: Output.
        columns: One sample unrolled into a matrix with a row for each output position.
        sizes: Its sizes.
        padding: Largest padding.
        dilated: Any dilation is above 1.
        width: Extent of the kernel along the last dimension.
    """

    backend: str
    inputs: int
    weight: int
    outputs: int
    columns: int
    sizes: Mapping[str, int]
    padding: int
    dilated: bool
    width: int

    @classmethod
    def of(cls, sizes: Mapping[str, int], operands: Sequence[Any]) -> _Convolution:
        """``operands`` are the nine arguments of ``aten.convolution``."""
        weight, padding, dilation = operands[1], operands[4], operands[5]
        itemsize = weight.element_size()
        rows = sizes["cout"] * sizes["in_spatial"] if sizes["transposed"] else sizes["cin"] * sizes["out_spatial"]
        return cls(
            backend=torch._C._select_conv_backend(*operands).name,
            inputs=sizes["n"] * sizes["cin"] * sizes["in_spatial"] * itemsize,
            weight=weight.numel() * itemsize,
            outputs=sizes["n"] * sizes["cout"] * sizes["out_spatial"] * itemsize,
            columns=rows * sizes["kernel"] * itemsize,
            sizes=sizes,
            padding=max(padding),
            dilated=max(dilation) > 1,
            width=weight.shape[-1],
        )

    @property
    def unrolled(self) -> int:
        """Bytes that PyTorch's own kernels, which multiply matrices, unroll at a time: the batch or one sample."""
        if self.sizes["kernel"] == 1 and self.sizes["stride"] == 1 and not self.padding:
            return 0  # the input is that matrix
        return self.columns * (self.sizes["n"] if self.backend in ("Slow2d", "Slow3d") else 1)

    @property
    def copies_groups(self) -> bool:
        """PyTorch's own kernels copy the operands of each group, however they lie."""
        return self.backend.startswith("Slow") and self.sizes["groups"] > 1

    @property
    def group_columns(self) -> int:
        """Columns of one group of one sample."""
        return self.columns // self.sizes["groups"]

    @property
    def reordered_image(self) -> int:
        """Bytes of the larger image, that of more positions per channel, in a blocked layout.

        One with few channels is read as it lies.
        """
        size, channels = ("outputs", "cout") if self.sizes["transposed"] else ("inputs", "cin")
        flat = self.sizes["groups"] == 1 and self.sizes[channels] <= _FLAT_CHANNELS
        reordered: int = 0 if flat else getattr(self, size)
        return reordered

    @property
    def depthwise(self) -> bool:
        """One input channel per group."""
        return self.sizes["groups"] > 1 and self.sizes["groups"] == self.sizes["cin"]

    @property
    def odd_groups(self) -> bool:
        """Groups that fill no vector of AVX2."""
        groups = self.sizes["groups"]
        if groups == 1 or self.depthwise:
            return False
        return bool(self.sizes["cin"] // groups % _VECTOR or self.sizes["cout"] // groups % _VECTOR)

    def data_gradient(self, source: int, result: int) -> int:
        """Scratch of oneDNN's gradient by the input, which is also the forward pass of a transposed convolution."""
        if has_measured_kernels() and (self.dilated or self.odd_groups):
            return max(torch.get_num_threads() * self.group_columns, result)
        strided = self.sizes["stride"] > 1 and self.sizes["groups"] == 1
        return max(source + self.weight, 2 * result if strided else result)


@lru_cache(maxsize=1)
def has_measured_kernels() -> bool:
    """True where convolutions run the kernels of AVX2, on which their workspace was measured."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


def _copied(operand: torch.Tensor, size: int) -> int:
    """``size`` for an operand of a convolution that lies in none of its memory formats: it is copied into one."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if operand.is_contiguous():
        return 0
    other = formats.get(operand.ndim)
    return 0 if other is not None and operand.is_contiguous(memory_format=other) else size


def _convolution(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    conv = _Convolution.of(sizes, args[:9])
    return _convolution_of_copies(conv) + (0 if conv.copies_groups else _copied(args[0], conv.inputs))


def _convolution_of_copies(conv: _Convolution) -> int:
    sizes = conv.sizes
    if conv.backend.startswith("Slow"):
        if not conv.copies_groups:
            transposed_batch = sizes["n"] if conv.backend == "SlowTranspose2d" else 1
            return conv.unrolled * transposed_batch
        # Group after group, from a copy of its inputs; then the results are put together.
        return max((conv.inputs + conv.unrolled) // sizes["groups"], conv.outputs)
    if sizes["transposed"]:
        return conv.data_gradient(conv.inputs, conv.outputs)
    widest = _PADDING_DEPTHWISE if conv.depthwise else _PADDING
    if has_measured_kernels() and (conv.padding > widest or conv.odd_groups):
        columns = min(conv.group_columns, _MOST_COLUMNS)
        return max(torch.get_num_threads() * columns, conv.outputs)
    return max(conv.reordered_image + conv.weight, conv.outputs)


def _convolution_backward(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    conv = _Convolution.of(sizes, (args[1], args[2], None, *args[4:10]))
    # For example the gradient of a sum, which is one number, expanded, or that of a part of a concatenation.
    copied = 0 if conv.copies_groups else _copied(args[0], conv.outputs) + _copied(args[1], conv.inputs)
    if conv.backend.startswith("Slow"):
        return _slow_backward(conv) + copied
    by_input = by_weight = 0
    if sizes["grad_input"]:
        # The gradient by the weight is not allocated yet.
        later = conv.weight if sizes["grad_weight"] else 0
        if sizes["transposed"]:
            by_input = max(conv.reordered_image + conv.weight, conv.inputs) - later
        else:
            by_input = conv.data_gradient(conv.outputs, conv.inputs) - later
    if sizes["grad_weight"]:
        by_weight = _weight_gradient(conv)
    return copied + max(by_input, by_weight, 0)


def _slow_backward(conv: _Convolution) -> int:
    """The gradient by the input of ``Slow2d`` needs no columns."""
    sizes = conv.sizes
    unrolls = sizes["grad_weight"] or conv.backend != "Slow2d"
    columns = conv.unrolled if unrolls else 0
    if sizes["groups"] == 1:
        return columns
    put_together = conv.inputs if sizes["grad_input"] else 0
    return max((conv.outputs + conv.inputs + columns) // sizes["groups"], put_together)


def _weight_gradient(conv: _Convolution) -> int:
    sizes, threads = conv.sizes, torch.get_num_threads()
    wide = conv.width > (_WIDTH_DEPTHWISE if conv.depthwise else _WIDTH)
    if has_measured_kernels() and not sizes["transposed"] and (wide or conv.dilated or conv.odd_groups):
        columns = conv.group_columns
        if threads == 1 and columns > _L2_CACHE:
            columns = _ONE_THREAD_COLUMNS
        by_sample = sizes["out_spatial"] // threads < 256 and (sizes["n"] > 1 or sizes["groups"] > 2)
        return (threads if by_sample else 1) * (columns + 4 * conv.weight)
    if has_measured_kernels() and sizes["dimensions"] == _VOLUME:
        most = _ONE_THREAD_COLUMNS if threads == 1 else _MOST_COLUMNS
        return min(conv.group_columns, most) + 4 * conv.weight
    other = conv.inputs if sizes["transposed"] else conv.outputs
    needed = max(conv.reordered_image + other, conv.weight)
    if sizes["out_spatial"] <= _SMALL_IMAGE ** sizes["dimensions"] and sizes["kernel"] > 1 and sizes["n"] > 1:
        # Images too small for the blocked kernel: each thread sums up four gradients of its own.
        needed = max(needed, 4 * threads * conv.weight)
    return needed


def _product(_sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    """Operands of a matrix product that are neither row-major nor column-major are copied."""
    copied = 0
    for operand in args[-2:]:
        if operand.layout != torch.strided:
            continue
        (rows, columns), (down, along) = operand.shape, operand.stride()
        if not (down == 1 and along >= max(1, rows)) and not (along == 1 and down >= max(1, columns)):
            copied += operand.numel() * operand.element_size()
    return copied


def _fourier(_sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    """The transformed dimension is made the innermost one."""
    operand, dimensions = args[:2]
    return 0 if operand.stride(dimensions[-1]) == 1 else operand.numel() * operand.element_size()


def _inverse_real_fourier(sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    """All dimensions but the last are transformed into a tensor of their own."""
    operand, dimensions = args[:2]
    size: int = operand.numel() * operand.element_size()
    return _fourier(sizes, args) if len(dimensions) == 1 else 2 * size


def _reduced_loss(_sizes: Mapping[str, int], args: Sequence[Any]) -> int:
    reduction = args[2] if len(args) > 2 else 1
    size: int = max(operand.numel() * operand.element_size() for operand in args[:2])
    return size if reduction else 0


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
    "mm": _product,
    "_fft_r2c": _fourier,
    "_fft_c2c": _fourier,
    "_fft_c2r": _inverse_real_fourier,
    "mse_loss": _reduced_loss,
    "smooth_l1_loss": _reduced_loss,
    "huber_loss": _reduced_loss,
    "mkldnn_rnn_layer": _recurrent_forward,
    "mkldnn_rnn_layer_backward": _recurrent_backward,
}
