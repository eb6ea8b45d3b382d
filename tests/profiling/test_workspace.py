"""Scratch memory of operators against the allocator's events of a real step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import profile, profiler, workspace
from trainpilot.profiling.cache import ProfileCache

from .test_flops import summed
from .test_memory import measured_peak_bytes

avx2 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX2", reason="which kernels oneDNN has is known for AVX2"
)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 256)
        self.weight = nn.Parameter(torch.randn(65, 256, 2))

    def forward(self, x):
        spectrum = torch.fft.rfft(self.linear(x), dim=1) * torch.view_as_complex(self.weight)
        return torch.fft.irfft(spectrum, n=x.shape[1], dim=1)


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


@pytest.mark.parametrize(
    ("model", "shape", "dtype"),
    [
        pytest.param(nn.Conv2d(16, 16, 15, padding=7), (4, 16, 32, 32), "float32", marks=avx2, id="wide"),
        pytest.param(nn.Conv1d(64, 64, 31, padding=15, groups=64), (8, 64, 500), "float32", marks=avx2, id="depthwise"),
        pytest.param(nn.Conv1d(32, 32, 3, padding=8, dilation=8), (8, 32, 500), "float32", marks=avx2, id="dilated"),
        pytest.param(nn.Conv3d(16, 16, 3, padding=1), (2, 16, 8, 16, 16), "float32", marks=avx2, id="volume"),
        pytest.param(nn.ConvTranspose2d(32, 3, 4, 2, 1), (8, 32, 16, 16), "float32", marks=avx2, id="transposed"),
        pytest.param(nn.Conv2d(256, 512, 1), (4, 256, 16, 16), "float32", id="pointwise"),
        pytest.param(
            nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1, groups=4)),
            (8, 8, 64, 64),
            "float32",
            marks=avx2,
            id="grouped",
        ),
        pytest.param(
            nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)),
            (8, 8, 32, 32),
            "float64",
            id="double",
        ),
        pytest.param(nn.Conv2d(8, 32, 3, padding=1, groups=4), (8, 8, 32, 32), "float64", id="double grouped"),
        pytest.param(Spectral(), (16, 128, 64), "float32", id="Fourier"),
    ],
)
def test_scratch_of_a_layer(model: nn.Module, shape: tuple[int, ...], dtype: str) -> None:
    kind = getattr(torch, dtype)
    workload = tp.Workload(model.to(kind), torch.randn(shape, dtype=kind), loss=summed)
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.08)


class Skipping(nn.Module):
    """The gradient of the inner layer is a part of that of the concatenation."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Conv2d(3, 16, 3, padding=1), inner, nn.Conv2d(32, 16, 1)

    def forward(self, x):
        kept = torch.relu(self.first(x))
        return self.last(torch.cat([kept, self.inner(kept)], 1))


class Gated(nn.Module):
    """The input of the inner layer is a part of another tensor."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 32, 3, padding=1), inner

    def forward(self, x):
        gate, value = torch.relu(self.first(x)).chunk(2, 1)
        return self.inner(value) * gate


class OverTime(nn.Module):
    """Input and gradient of the convolution are transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.inner = nn.Linear(8, 64), nn.Linear(64, 8), nn.Conv1d(64, 64, 5, padding=2)

    def forward(self, x):
        return self.last(self.inner(self.first(x).transpose(1, 2)).transpose(1, 2))


@avx2
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Skipping(nn.Conv2d(16, 16, 3, padding=1)), (4, 3, 32, 32)),
        (Skipping(nn.ConvTranspose2d(16, 16, 3, padding=1)), (4, 3, 32, 32)),
        (Gated(nn.Conv2d(16, 16, 3, padding=1)), (4, 3, 32, 32)),
        (Gated(nn.Conv2d(16, 16, 3, padding=1, groups=16)), (4, 3, 32, 32)),
        (OverTime(), (8, 256, 8)),
    ],
)
def test_convolution_copies_operands_that_are_not_contiguous(model: nn.Module, shape: tuple[int, ...]) -> None:
    workload = tp.Workload(model, torch.randn(shape), loss=summed, optimizer="sgd")
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.005)


def test_convolution_does_not_copy_what_lies_channels_last() -> None:
    x = torch.randn(2, 8, 32, 32).to(memory_format=torch.channels_last)
    plain, last = (
        profile(tp.Workload(nn.Conv2d(8, 8, 3, padding=1), inputs, loss=summed)).memory.workspace_bytes
        for inputs in (x.contiguous(), x)
    )
    assert plain == last


@avx2
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scratch_of_a_convolution_in_half_precision(dtype: torch.dtype) -> None:
    # Without AVX512 these run as matrix products on the unrolled batch.
    model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()).to(dtype)
    workload = tp.Workload(model, torch.randn(4, 8, 16, 16, dtype=dtype), loss=summed)
    p = profile(workload)
    assert p.memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.02)
    # One unrolled batch, of 2 bytes each, and the gradient of the sum, which ReLU's backward pass wrote out.
    assert p.memory.workspace_bytes == 2 * 4 * 8 * 9 * 16 * 16


class Autocast(nn.Module):
    """Casts to bfloat16 by itself, so that the real step does as well."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(x)


def test_scratch_of_a_convolutional_network_under_autocast() -> None:
    model = Autocast(nn.Sequential(block(3, 16), block(16, 32, 2), nn.Flatten(), nn.Linear(32 * 64, 10)))
    workload = tp.Workload(model, torch.randn(8, 3, 16, 16), loss=summed)
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.1)


def test_a_mean_squared_error_keeps_the_storage_of_all_errors() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    workload = tp.Workload(model, torch.randn(512, 64), torch.zeros(512, 64))
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.01)


def test_workspace_of_another_instruction_set_is_said_to_be_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def notes(module: nn.Module, *shape: int) -> list[str]:
        monkeypatch.setattr(profiler, "_cache", ProfileCache())
        workload = tp.Workload(module, example_inputs=torch.randn(*shape), loss=lambda output, _: output.sum())
        return [note for note in tp.profile(workload).notes if "workspace of convolutions: assumed" in note]

    for capability, count in (("AVX2", 0), ("AVX512", 1), ("DEFAULT", 1)):
        workspace.has_measured_kernels.cache_clear()
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert len(notes(nn.Conv2d(3, 8, 3), 2, 3, 8, 8)) == count
        assert notes(nn.Linear(3, 8), 2, 3) == []
    workspace.has_measured_kernels.cache_clear()
