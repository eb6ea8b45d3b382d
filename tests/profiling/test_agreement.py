"""The trace on fake tensors is the trace of the real step: the same dispatches, sizes, bytes and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import profile, profiler
from trainpilot.profiling.step import StepError


def run_on_real_tensors(monkeypatch: pytest.MonkeyPatch, workload: tp.Workload) -> tp.WorkloadProfile:
    def unsupported(*_: Any) -> None:
        raise StepError("forward", NotImplementedError())

    with monkeypatch.context() as patch:
        patch.setattr(profiler._Profiler, "_fake", unsupported)
        patch.setattr(profiler, "_cache", profiler.ProfileCache())
        return profile(workload)


def table(p: tp.WorkloadProfile) -> dict[Any, Any]:
    return {
        (group.phase, group.op, group.op_class, tuple(sorted(group.shape.items()))): (
            group.calls,
            group.flops,
            group.bytes_read,
            group.bytes_written,
        )
        for group in p.op_groups
    }


@pytest.mark.parametrize(
    "name",
    [
        "large_mlp",
        "dlrm",
        "small_cnn",
        "mobilenet",
        "unet",
        "transformer",
        "rotary_gpt",
        "vit",
        "gru",
        "text_embedding",
    ],
)
def test_fake_and_real_trace_are_equal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    workload = tp.Workload(name, batch_size=2)
    fake, real = profile(workload), run_on_real_tensors(monkeypatch, workload)
    assert table(fake) == table(real)
    assert fake.memory.peak_bytes == pytest.approx(real.memory.peak_bytes, rel=0.01)
    assert fake.params == real.params
    assert fake.depth == real.depth


def test_fused_recurrent_layer_saves_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = tp.Workload("lstm_lm", batch_size=2)
    fake, real = profile(workload), run_on_real_tensors(monkeypatch, workload)
    # Accumulating a bias gradient copies on fake tensors and steals on real ones.
    skipped = {"aten.detach", "aten.copy_", "aten.new_empty_strided"}
    assert {k: v for k, v in table(fake).items() if k[1] not in skipped} == {
        k: v for k, v in table(real).items() if k[1] not in skipped
    }
    assert fake.memory.peak_bytes == pytest.approx(real.memory.peak_bytes, rel=0.001)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop", "adagrad", "adamax", "radam"])
def test_optimizer_template_is_what_a_real_step_dispatches(optimizer: str) -> None:
    from trainpilot.profiling.optimizer import named_optimizer_cost, traced_optimizer_cost

    model = nn.Sequential(nn.Linear(7, 11), nn.Linear(11, 3))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # that of step counters: not remembered for another one
    try:
        named_optimizer_cost(optimizer, list(model.parameters()))
    finally:
        torch.set_default_dtype(default)
    named = named_optimizer_cost(optimizer, list(model.parameters()))
    traced = traced_optimizer_cost(optimizer, model, lambda _parameter: True)
    assert named.groups
    assert {(g.op, g.calls, g.bytes_read, g.bytes_written) for g in named.groups} == {
        (g.op, g.calls, g.bytes_read, g.bytes_written) for g in traced.groups
    }
    assert named.state_bytes == traced.state_bytes


def test_optimizer_of_the_user_is_traced() -> None:
    def fused(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, fused=True)

    model = nn.Linear(8, 8)
    p = profile(tp.Workload(model, example_inputs=torch.randn(4, 8), optimizer=fused))
    assert [(g.op, g.calls) for g in p.op_groups if g.phase == "optimizer" and "fused" in g.op] == [
        ("aten._fused_adamw_", 1)
    ]
    assert p.memory.optimizer_bytes == 8 * p.params
    plain = profile(tp.Workload(model, example_inputs=torch.randn(4, 8), optimizer="adamw"))
    assert plain.features["calls.optimizer"] > p.features["calls.optimizer"]
