"""Models that are one operator, for identifying the cost of each kind by itself.

Each adds a learned shift to its input, so that there is something to train and the operator's backward pass computes
the gradient of its input too. The loss looks at one slice of the output, which costs next to nothing in the forward
pass and one writing of the output's gradient in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainpilot.zoo.models.attention import RMSNorm
from trainpilot.zoo.models.layers import CELLS

Unary = Callable[[Tensor], Tensor]

_UNARY: dict[str, Unary] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "add": lambda x: torch.add(x, x, alpha=-0.5),  # halves, so that many repeats stay finite
    "mul": lambda x: x * x,
}


_LOSS_SCALE = 1e-4


def slice_loss(outputs: Tensor) -> Tensor:
    """Squared distance from 1 of the mean of the first slice of the last dimension, scaled.

    The loss has a minimum, so that thousands of steps stay finite; the scale keeps plain gradient descent stable where
    many inputs add up.
    """
    return _LOSS_SCALE * (outputs[..., 0].mean() - 1).square()


class Operator(nn.Module):
    """Shift, operator, loss.

    Args:
        operator: What is measured; a module's parameters are trained.
        shift: Shape of the shift, broadcast to the input.
        repeats: How often the operator is applied to its own output.

    Shapes: (batch, ...) → ().
    """

    def __init__(self, operator: Unary, shift: tuple[int, ...], repeats: int = 1) -> None:
        super().__init__()
        self.operator = operator
        self.shift = nn.Parameter(torch.zeros(shift))
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        x = x + self.shift
        for _ in range(self.repeats):
            x = self.operator(x)
        return slice_loss(x)


class _First(nn.Module):
    """A recurrent layer without its states."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.recurrent(x)[0]
        return outputs


def elementwise(*, function: str, elements: int, repeats: int) -> Operator:
    """One elementwise function, ``repeats`` times."""
    return Operator(_UNARY[function], (elements,), repeats)


def dropout(*, elements: int, share: float, repeats: int) -> Operator:
    """Dropout."""
    return Operator(nn.Dropout(share), (elements,), repeats)


def linear(*, inputs: int, outputs: int, positions: int, bias: bool, repeats: int) -> Operator:
    """Linear layers that lead there and back: inputs to outputs, outputs to inputs, ..."""
    sizes = [inputs if index % 2 == 0 else outputs for index in range(repeats + 1)]
    chain = nn.Sequential(*(nn.Linear(sizes[i], sizes[i + 1], bias=bias) for i in range(repeats)))
    return Operator(chain, (positions, inputs))


class Matmul(nn.Module):
    """Product of two batches of matrices: (batch, m, k), (batch, k, n) → ()."""

    def __init__(self, *, m: int, k: int, n: int, transposed: bool) -> None:  # noqa: ARG002 - m is the input's
        super().__init__()
        self.transposed = transposed
        self.shift_left = nn.Parameter(torch.zeros(k))
        self.shift_right = nn.Parameter(torch.zeros(k if transposed else n))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """The loss."""
        left, right = left + self.shift_left, right + self.shift_right
        product = torch.bmm(left, right.transpose(1, 2) if self.transposed else right)
        return slice_loss(product)


def conv2d(*, inputs: int, outputs: int, size: int, kernel: int, stride: int, groups: int, bias: bool) -> Operator:
    """Two-dimensional convolution."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)
    return Operator(layer, (inputs, size, size))


def depthwise_conv2d(*, channels: int, size: int, kernel: int, stride: int, bias: bool) -> Operator:
    """Convolution with one filter a channel."""
    layer = nn.Conv2d(channels, channels, kernel, stride=stride, padding=kernel // 2, groups=channels, bias=bias)
    return Operator(layer, (channels, size, size))


def conv1d(*, inputs: int, outputs: int, length: int, kernel: int, stride: int, dilation: int, groups: int) -> Operator:
    """One-dimensional convolution."""
    padding = dilation * (kernel // 2)
    layer = nn.Conv1d(inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Operator(layer, (inputs, length))


def conv_transpose2d(*, inputs: int, outputs: int, size: int, kernel: int) -> Operator:
    """Transposed convolution that doubles the image."""
    layer = nn.ConvTranspose2d(inputs, outputs, kernel, stride=2, padding=(kernel - 2) // 2)
    return Operator(layer, (inputs, size, size))


class AttentionOperator(nn.Module):
    """Attention without projections: (batch, length, 3 * heads * head_size) → ()."""

    def __init__(self, *, heads: int, head_size: int, length: int, attention: str, causal: bool) -> None:
        super().__init__()
        self.heads, self.head_size = heads, head_size
        self.fused = attention == "sdpa"
        self.causal = causal
        self.length = length
        self.shift = nn.Parameter(torch.zeros(3 * heads * head_size))

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        parts = (x + self.shift).view(len(x), self.length, 3, self.heads, self.head_size)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            return slice_loss(functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal))
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_size)
        if self.causal:
            future = torch.ones(self.length, self.length, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return slice_loss(scores.softmax(-1) @ value)


def recurrent(*, cell: str, inputs: int, width: int, length: int, layers: int, bidirectional: bool) -> Operator:
    """Recurrent layers."""
    layer = CELLS[cell](inputs, width, num_layers=layers, bidirectional=bidirectional, batch_first=True)
    return Operator(_First(layer), (length, inputs))


class EmbeddingOperator(nn.Module):
    """Look-up of token ids: (batch, length) → ()."""

    def __init__(self, *, rows: int, width: int, length: int) -> None:  # noqa: ARG002 - the length is the input's
        super().__init__()
        self.embedding = nn.Embedding(rows, width)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss."""
        return slice_loss(self.embedding(ids))


class EmbeddingBagOperator(nn.Module):
    """Look-up and mean or sum of token ids: (batch, length) → ()."""

    def __init__(self, *, rows: int, width: int, length: int, mode: str) -> None:  # noqa: ARG002 - as above
        super().__init__()
        self.embedding = nn.EmbeddingBag(rows, width, mode=mode)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss."""
        return slice_loss(self.embedding(ids))


def layer_norm(*, width: int, positions: int, repeats: int) -> Operator:
    """Layer norm over the last dimension."""
    return Operator(nn.LayerNorm(width), (positions, width), repeats)


def rms_norm(*, width: int, positions: int, repeats: int) -> Operator:
    """Root-mean-square norm, written out."""
    return Operator(RMSNorm(width), (positions, width), repeats)


def batch_norm(*, channels: int, size: int, repeats: int) -> Operator:
    """Batch norm of images."""
    return Operator(nn.BatchNorm2d(channels), (channels, size, size), repeats)


def group_norm(*, channels: int, size: int, groups: int, repeats: int) -> Operator:
    """Group norm of images."""
    return Operator(nn.GroupNorm(groups, channels), (channels, size, size), repeats)


def softmax(*, width: int, positions: int, repeats: int) -> Operator:
    """Softmax over the last dimension."""
    return Operator(nn.Softmax(-1), (positions, width), repeats)


def pool2d(*, kind: str, channels: int, size: int, kernel: int, stride: int) -> Operator:
    """Maximum or mean of windows of an image."""
    pool = nn.MaxPool2d if kind == "max" else nn.AvgPool2d
    return Operator(pool(kernel, stride=stride, padding=kernel // 2), (channels, size, size))


def upsample(*, channels: int, size: int, mode: str) -> Operator:
    """Doubling an image."""
    layer = nn.Upsample(scale_factor=2, mode=mode, align_corners=None if mode == "nearest" else False)
    return Operator(layer, (channels, size, size))


def cat(*, rows: int, columns: int, parts: int) -> Operator:
    """Joining tensors along the rows."""
    return Operator(lambda x: torch.cat([x] * parts, dim=1), (rows, columns))


def transpose_copy(*, rows: int, columns: int, repeats: int) -> Operator:
    """Writing out a transposed matrix."""
    return Operator(lambda x: x.transpose(1, 2).contiguous(), (rows, columns), repeats)


def reduce(*, rows: int, columns: int, axis: str) -> Operator:
    """Mean over the rows or the columns of each sample."""
    dimension = 1 if axis == "rows" else 2
    return Operator(lambda x: x.mean(dimension), (rows, columns))


class CrossEntropyOperator(nn.Module):
    """Class scores that are the shifted input: (batch, classes) → the same; the loss is all that is measured."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        return x + self.shift


class OptimizerOperator(nn.Module):
    """Many parameters and next to no forward pass: (batch, 1) → ().

    One element of each parameter enters the loss, so its gradient is dense but costs only its writing.
    """

    def __init__(self, *, tensors: int, elements: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(elements) for _ in range(tensors))

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        chosen = torch.stack([weight[:1] for weight in self.weights])
        return slice_loss(chosen + 0 * x.mean())
