"""Settings of the process are the same after a trace, whatever a model or a builder sets."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.errors import ModelError
from trainpilot.profiling import profile

from .test_flops import of


def settings() -> list[Any]:
    return [
        torch.get_num_threads(),
        torch.get_default_dtype(),
        gc.isenabled(),
        gc.get_threshold(),
        dict(os.environ),
        list(warnings.filters),
    ]


def change_settings() -> None:
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    gc.disable()
    gc.set_threshold(123)
    os.environ["SET_BY_A_MODEL"] = "1"
    os.environ.pop("SET_BEFORE", None)
    warnings.simplefilter("ignore", ImportWarning)


class Setting(nn.Module):
    def __init__(self, then: Any = None) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.l(x)
        change_settings()
        if self.then is not None:
            raise self.then
        return y


def test_what_a_model_sets_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BEFORE", "yes")
    before = settings()
    of(Setting(), torch.randn(4, 8))
    assert settings() == before
    with pytest.raises(ModelError):
        of(Setting(ValueError("no")), torch.randn(4, 8))
    assert settings() == before


def test_what_a_builder_sets_is_put_back() -> None:
    def build() -> nn.Module:
        model = nn.Linear(8, 4)
        change_settings()
        return model

    before = settings()
    profile(tp.Workload(build, torch.randn(4, 8)))
    assert settings() == before


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autograd.detect_anomaly(check_nan=True),
        torch.no_grad,
        torch.inference_mode,
    ],
)
def test_a_mode_of_the_caller_does_not_reach_the_trace(mode: Any) -> None:
    # A factory is traced, so this covers the optimizer step as well; and each model is another one to the cache.
    def traced() -> tp.WorkloadProfile:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        return of(model, torch.ones(32, 8), optimizer=torch.optim.AdamW)

    plain = traced()
    with mode():
        inside = traced()
    assert inside.op_groups == plain.op_groups
    assert inside.memory == plain.memory
    # By hand: x W1, h W2, then for each layer the gradient of the weight, and of h.
    assert (inside.forward_flops, inside.backward_flops) == (2 * 32 * (8 * 16 + 16 * 4), 2 * 32 * (8 * 16 + 2 * 16 * 4))


def test_the_first_profile_of_a_process_leaves_no_settings_behind() -> None:
    program = """
import os, warnings, torch
import trainpilot as tp
from torch import nn
environment, filters = dict(os.environ), list(warnings.filters)
tp.profile(tp.Workload(nn.Linear(8, 4), torch.randn(4, 8)))
assert dict(os.environ) == environment, set(os.environ) - set(environment)
assert warnings.filters == filters, [f for f in warnings.filters if f not in filters]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
