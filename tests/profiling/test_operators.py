"""Operators that PyTorch treats in a way of their own: fused kernels, nested and quantised operands, dtypes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.errors import ModelError
from trainpilot.profiling import count_operations, profile

from .test_flops import of, summed
from .test_memory import measured_peak_bytes


@pytest.mark.parametrize(
    ("activation", "op"),
    [(nn.SiLU(), "silu_backward"), (nn.Mish(), "mish_backward"), (nn.ReLU(), "threshold_backward")],
)
def test_backward_of_an_activation_with_a_kernel_of_its_own_is_one_operator(activation: nn.Module, op: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), activation, nn.Linear(64, 64))
    workload = tp.Workload(model, torch.randn(512, 64), loss=summed)
    p = profile(workload)
    backward = {group.op: group.calls for group in p.op_groups if group.phase == "backward"}
    assert backward[f"aten.{op}"] == 1
    assert "aten.sigmoid" not in backward
    assert p.memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.01)


def test_channel_shuffle_is_one_operator_that_copies() -> None:
    counts = count_operations(torch.native_channel_shuffle, (torch.randn(2, 4, 3, 3), 2))
    (group,) = (group for group in counts.op_groups if group.op_class != "other")
    assert (group.op, group.op_class) == ("aten.native_channel_shuffle", "copy")
    assert (group.bytes_read, group.bytes_written) == (4 * 72, 4 * 72)


class FrozenEncoder(nn.Module):
    """An encoder in eval mode without gradients, which packs padded batches into nested tensors, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.encoder.requires_grad_(False)
        self.head = nn.Linear(32, 3)

    def forward(self, x, mask):
        return self.head(self.encoder.eval()(x, src_key_padding_mask=mask)[:, 0])


@pytest.mark.parametrize("padding", [0, 2])
def test_nested_tensors_count_the_tokens_that_are_there(padding: int) -> None:
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 6 - padding :] = True
    x, tokens = torch.randn(2, 6, 32), 12 - padding
    # Projections and feed-forward part by tokens; the kernel pads the attention to the longest sequence.
    encoder = 2 * 2 * (4 * tokens * 32 * 32 + 2 * 2 * 6 * 6 * 32 + 2 * tokens * 32 * 64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*nested tensors is in prototype stage")
        p = of(FrozenEncoder(), (x, mask))
        with torch.no_grad():
            counts = count_operations(FrozenEncoder().eval().encoder, (x,), {"src_key_padding_mask": mask})
    assert p.forward_flops == encoder + 2 * 2 * 32 * 3
    assert p.data_dependent
    assert p.uncounted_ops == {}
    assert (counts.forward_flops, counts.uncounted_ops) == (encoder, {})


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Linear(8, 4).double(), torch.randn(4, 8)),
        (nn.Linear(8, 4, bias=False), torch.randn(4, 8).double()),
        (nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 8, 8)),
    ],
)
def test_operands_of_two_dtypes_are_refused_as_the_kernels_refuse_them(model: nn.Module, x: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        model(x)
    with pytest.raises(ModelError, match="forward raised RuntimeError.*(dtype|type)"):
        of(model, x)
    with pytest.raises(ModelError, match="raised RuntimeError.*(dtype|type)"):
        count_operations(model, (x,))


def test_autocast_of_mixed_dtypes_is_no_error() -> None:
    assert of(nn.Linear(8, 4), torch.randn(4, 8), dtype="bfloat16").forward_flops == 2 * 4 * 8 * 4


class FirstAveraged(nn.Module):
    """Steps come first, samples second; BatchNorm sees the samples only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(x.mean(0)))


def test_batch_norm_with_the_batch_in_the_second_dimension_is_profiled_at_two_samples() -> None:
    p = of(FirstAveraged(), lambda n: torch.randn(7, n, 4), batch_size=1)
    assert (p.batch_size, p.forward_flops) == (2, 2 * 2 * 4 * 2)
    assert any("BatchNorm needs batch >= 2" in note for note in p.notes)


def test_batch_norm_with_a_fixed_batch_of_one_in_the_second_dimension_asks_for_two_samples() -> None:
    with pytest.raises(ModelError, match=r"BatchNorm needs batch >= 2 in train mode: give inputs of two samples"):
        of(FirstAveraged(), torch.randn(7, 1, 4), batch_size=1)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_convolution_is_counted() -> None:
    before, torch.backends.quantized.engine = torch.backends.quantized.engine, "onednn"
    weight = torch.quantize_per_tensor(torch.randn(8, 3, 3, 3), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.conv2d_prepack(weight, None, [1, 1], [0, 0], [1, 1], 1)
    x = torch.quantize_per_tensor(torch.randn(1, 3, 8, 8), 0.1, 0, torch.quint8)

    def convolve(x: torch.Tensor) -> Any:
        return torch.ops.quantized.conv2d(x, packed, 0.1, 0)

    try:
        counts = count_operations(convolve, (x,))
    finally:
        torch.backends.quantized.engine = before
    assert (counts.forward_flops, counts.uncounted_ops) == (2 * 6 * 6 * 8 * 3 * 3 * 3, {})


def test_complex_convolution_counts_three_real_ones() -> None:
    # Gauss: (a + bi)(c + di) with three products, each of 2 FLOPs per multiply-add.
    conv = nn.Conv2d(2, 4, 3, dtype=torch.complex64)
    counts = count_operations(conv, (torch.randn(1, 2, 8, 8, dtype=torch.complex64),))
    assert counts.forward_flops == 6 * 6 * 6 * 4 * 2 * 3 * 3


class WarnsWhenRun(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(4, 8, proj_size=2)

    def forward(self, x):
        return self.recurrent(x)[0]


def test_warnings_of_pytorch_are_not_shown() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        of(WarnsWhenRun(), torch.randn(3, 2, 4))
        assert warnings.filters == before
    assert [str(warning.message) for warning in seen] == []


def test_message_on_a_loss_without_gradient_names_the_workload() -> None:
    with pytest.raises(ModelError, match=r"^mine: the loss does not depend on any trainable parameter"):
        of(nn.Linear(8, 4), torch.randn(4, 8), label="mine", loss=lambda outputs, targets: outputs.detach().sum())


def test_an_optimizer_that_needs_a_closure_is_explained() -> None:
    with pytest.raises(ModelError, match=r"^Linear: an optimizer whose step needs a closure, as LBFGS does"):
        of(nn.Linear(8, 4), torch.randn(4, 8), optimizer=torch.optim.LBFGS)
