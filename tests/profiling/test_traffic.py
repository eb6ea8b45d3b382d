"""Bytes read and written, against sizes worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from trainpilot.profiling import count_operations
from trainpilot.profiling.operators import kind_of
from trainpilot.profiling.result import OP_CLASSES

from .test_flops import of

A = torch.randn(8, 16)
ROW = torch.randn(16)
INDEX = torch.tensor([0, 3, 5])


def traffic(function: Callable[..., Any], *args: Any, op: str | None = None) -> tuple[int, int]:
    groups = count_operations(function, args).op_groups
    chosen = [group for group in groups if op is None or group.op == f"aten.{op}"]
    return sum(group.bytes_read for group in chosen), sum(group.bytes_written for group in chosen)


SIZE, BYTES_OF_ROW = 8 * 16 * 4, 16 * 4


@pytest.mark.parametrize(
    ("function", "args", "read", "written"),
    [
        (torch.relu, (A,), SIZE, SIZE),
        (torch.add, (A, A), 2 * SIZE, SIZE),
        (torch.add, (A, ROW), SIZE + BYTES_OF_ROW, SIZE),
        (torch.add, (A, ROW.expand(8, 16)), SIZE + BYTES_OF_ROW, SIZE),  # one row in memory
        (lambda x: x.relu_(), (A,), SIZE, SIZE),  # in place: read and written
        (lambda x: x.zero_(), (A,), 0, SIZE),  # overwritten unread
        (lambda x, y: x.copy_(y), (A, ROW), BYTES_OF_ROW, SIZE),
        (lambda x: x.view(16, 8).t()[2:].unsqueeze(0), (A,), 0, 0),  # views
        (lambda x: torch.empty_like(x), (A,), 0, 0),
        (lambda x: torch.zeros_like(x), (A,), 0, SIZE),
        (torch.sum, (A,), SIZE, 4),
        (lambda x, y: torch.cat([x, y]), (A, A), 2 * SIZE, 2 * SIZE),
        (lambda x: x.t().contiguous(), (A,), SIZE, SIZE),
        (lambda x, i: x[i], (A, INDEX), 3 * BYTES_OF_ROW + 3 * 8, 3 * BYTES_OF_ROW),  # rows asked for
        (torch.index_select, (A, 0, INDEX), 3 * BYTES_OF_ROW + 3 * 8, 3 * BYTES_OF_ROW),
        (lambda w, i: F.embedding(i, w), (A, INDEX), 3 * BYTES_OF_ROW + 3 * 8, 3 * BYTES_OF_ROW),
        (torch.mm, (A, torch.randn(16, 4)), SIZE + 16 * 4 * 4, 8 * 4 * 4),
        (
            lambda x, i, v: x.index_put_((i,), v),
            (A, INDEX, torch.randn(3, 16)),
            3 * BYTES_OF_ROW + 3 * 8,
            3 * BYTES_OF_ROW,
        ),
        (lambda x: x.double(), (A,), SIZE, 2 * SIZE),
    ],
)
def test_bytes(function: Callable[..., Any], args: tuple[Any, ...], read: int, written: int) -> None:
    assert traffic(function, *args) == (read, written)


def test_half_precision_moves_half_the_bytes() -> None:
    assert traffic(torch.relu, A.bfloat16()) == (SIZE // 2, SIZE // 2)


def test_convolution_backward_reads_what_it_needs() -> None:
    layer, shape = torch.nn.Conv2d(3, 4, 3, padding=1, bias=False), (2, 3, 8, 8)
    inputs, outputs, weight = 2 * 3 * 64 * 4, 2 * 4 * 64 * 4, 4 * 27 * 4

    def backward(requires_grad: bool) -> tuple[int, int]:
        p = of(layer, torch.randn(shape, requires_grad=requires_grad))
        (group,) = [group for group in p.op_groups if group.op == "aten.convolution_backward"]
        return group.bytes_read, group.bytes_written

    # The gradient of a sum is one element, expanded.
    assert backward(True) == (4 + inputs + weight, inputs + weight)
    assert backward(False) == (4 + inputs, weight)
    assert outputs == 2048


def test_batch_norm_class_and_traffic() -> None:
    p = of(torch.nn.BatchNorm2d(4), torch.randn(2, 4, 8, 8))
    (group,) = [group for group in p.op_groups if group.op == "aten.native_batch_norm"]
    size = 2 * 4 * 64 * 4
    assert (group.op_class, group.bytes_read, group.bytes_written) == ("norm", size + 4 * 4 * 4, size + 2 * 4 * 4)


@pytest.mark.parametrize(
    ("op", "op_class"),
    [
        ("mm.default", "matmul"),
        ("convolution.default", "conv"),
        ("_scaled_dot_product_flash_attention_for_cpu.default", "attention"),
        ("mkldnn_rnn_layer.default", "rnn"),
        ("embedding.default", "embedding"),
        ("native_layer_norm.default", "norm"),
        ("_softmax.default", "softmax"),
        ("gelu.default", "elementwise"),
        ("threshold_backward.default", "elementwise"),
        ("add_.Tensor", "elementwise"),
        ("sum.dim_IntList", "reduction"),
        ("nll_loss_forward.default", "reduction"),
        ("max_pool2d_with_indices.default", "pool"),
        ("upsample_bilinear2d.default", "pool"),
        ("clone.default", "copy"),
        ("_to_copy.default", "copy"),
        ("expand_copy.default", "copy"),
        ("bernoulli_.float", "random"),
        ("view.default", "other"),
        ("_cdist_backward.default", "other"),
    ],
)
def test_class_of_operator(op: str, op_class: str) -> None:
    packet, overload = op.split(".")
    kind = kind_of(getattr(getattr(torch.ops.aten, packet), overload))
    assert kind.op_class == op_class
    assert op_class in OP_CLASSES


def test_only_operators_that_are_known_to_do_no_arithmetic_count_as_counted() -> None:
    uncounted = {"_fft_c2c", "linalg_qr", "cholesky", "_cdist_forward", "mv", "dot", "_trilinear", "addmv"}
    for name in uncounted:
        assert kind_of(getattr(torch.ops.aten, name).default).uncounted
