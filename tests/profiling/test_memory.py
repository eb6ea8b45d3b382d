"""Estimated peak memory against PyTorch's own allocator events of a real step."""

from __future__ import annotations

import functools
import gc
from typing import Any

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import profile
from trainpilot.profiling.workspace import saved_workspace_bytes
from trainpilot.workload import build_optimizer, compute_loss, map_tensors

from .test_flops import of


def measured_peak_bytes(workload: tp.Workload) -> int:
    """Weights, buffers and optimizer state, plus the most that the second step had allocated at one moment."""
    resolved = workload.resolve()
    model = resolved.model
    optimizer = build_optimizer(workload.optimizer, model)
    assert workload.batch_size is not None
    inputs = resolved.make_inputs(workload.batch_size)
    targets = resolved.make_targets(workload.batch_size) if resolved.make_targets else None

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        outputs = model(*x.args, **x.kwargs)  # as in most training loops, alive until the next step
        loss = compute_loss(outputs, y, resolved.loss)
        loss.backward()
        optimizer.step()

    step(inputs, targets)
    optimizer.zero_grad()
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        step(map_tensors(torch.clone, inputs), map_tensors(torch.clone, targets))
    alive = peak = 0
    for event in prof.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    kept = [*model.parameters(), *model.buffers()]
    kept += [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return peak + sum(tensor.numel() * tensor.element_size() for tensor in kept)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("large_mlp", 0.01),
        ("cnn", 0.05),
        ("resnet", 0.05),
        ("mobilenet", 0.05),
        ("transformer", 0.01),
        ("vit", 0.01),
        ("lstm", 0.05),
        ("lstm_lm", 0.05),
        ("gru", 0.01),
        ("text_embedding", 0.05),
        ("dlrm", 0.05),
    ],
)
def test_peak_is_close_to_the_measured_one(name: str, tolerance: float) -> None:
    workload = tp.Workload(name, batch_size=8)
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=tolerance)


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.AdamW,
        functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
        functools.partial(torch.optim.Adam, foreach=True, amsgrad=True),
        functools.partial(torch.optim.AdamW, fused=True),
        torch.optim.Rprop,
        torch.optim.Adafactor,
    ],
)
def test_peak_includes_what_an_optimizer_of_the_user_allocates(optimizer: Any) -> None:
    model = nn.Sequential(nn.Linear(200, 400), nn.ReLU(), nn.Linear(400, 10))
    workload = tp.Workload(model, lambda batch_size: torch.randn(batch_size, 200), optimizer=optimizer, batch_size=4)
    assert profile(workload).memory.peak_bytes == pytest.approx(measured_peak_bytes(workload), rel=0.001)


def test_accumulated_gradients_are_told() -> None:
    model, x = nn.Linear(64, 32), torch.randn(8, 64)
    plain, accumulated = of(model, x), of(model, x, accumulate=4)
    assert not plain.notes
    assert len(accumulated.notes) == 1
    assert f"{4 * (64 * 32 + 32):,} bytes" in accumulated.notes[0]
    assert accumulated.memory == plain.memory
    assert not of(model, x).notes


@pytest.mark.parametrize(
    ("steps", "batch", "width", "hidden"), [(16, 2, 32, 16), (28, 16, 28, 128), (50, 8, 100, 200), (7, 5, 283, 256)]
)
def test_workspace_of_a_recurrent_layer_is_that_of_the_real_kernel(
    steps: int, batch: int, width: int, hidden: int
) -> None:
    weights = [torch.randn(4 * hidden, n) for n in (width, hidden)] + [torch.randn(4 * hidden)] * 2
    state = torch.zeros(batch, hidden)
    args = (torch.randn(steps, batch, width), *weights, state, state)
    out = torch.ops.aten.mkldnn_rnn_layer(*args, False, [], 2, hidden, 1, True, False, False, True)
    assert saved_workspace_bytes(args) == pytest.approx(out[3].numel(), rel=0.001)


def test_parts_add_up_to_at_least_the_peak() -> None:
    for name in ("small_cnn", "lstm", "gpt"):
        memory = profile(tp.Workload(name, batch_size=4)).memory
        parts = (
            memory.weights_bytes,
            memory.buffers_bytes,
            memory.gradients_bytes,
            memory.optimizer_bytes,
            memory.activations_bytes,
            memory.workspace_bytes,
        )
        assert max(parts) <= memory.peak_bytes <= sum(parts)


def test_parts_of_a_linear_layer() -> None:
    p = of(
        nn.Linear(64, 32, bias=False), torch.randn(8, 64), optimizer="sgd", loss=lambda outputs, targets: outputs.sum()
    )
    memory = p.memory
    assert (memory.weights_bytes, memory.buffers_bytes, memory.optimizer_bytes) == (8_192, 0, 0)
    assert memory.gradients_bytes == 8_192
    # Alive together: input 8 x 64, output 8 x 32, the loss, and the gradient of the loss, which is expanded.
    assert memory.activations_bytes == 4 * (8 * 64 + 8 * 32 + 1 + 1)


def test_optimizer_state_counts_only_what_gets_a_gradient() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Linear(4, 4)
            self.unused = nn.Linear(100, 100)

        def forward(self, x):
            return self.used(x)

    p = of(Partly(), torch.randn(2, 4), optimizer="adam")
    assert p.trainable_params == 20 + 10_100
    assert p.memory.optimizer_bytes == 8 * 20
    assert p.memory.gradients_bytes == 4 * 20
