"""The profile as data for reading, and as the documented mapping."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import OP_CLASSES, profile, profile_table

from .test_flops import Other, of


def test_table_adds_up() -> None:
    p = profile(tp.Workload("small_cnn", batch_size=4))
    table = profile_table(p)
    *parts, whole = table.phases
    assert [row.name for row in table.phases] == ["forward", "loss", "backward", "optimizer", "step"]
    for field in ("calls", "flops", "bytes_moved"):
        assert sum(getattr(row, field) for row in parts) == getattr(whole, field)
        assert sum(getattr(row, field) for row in table.classes) == getattr(whole, field)
    assert whole.flops == p.forward_flops + p.backward_flops + p.optimizer_flops
    assert table.classes[0].name == "conv"
    assert len(table.operations) == 10
    assert table.operations[0].name == "backward aten.convolution_backward"
    assert table.operations[0].sizes["kernel"] == 9
    assert table.memory_bytes["peak"] == p.memory.peak_bytes
    assert len(profile_table(p, operations=3).operations) == 3


def test_table_tells_what_was_not_counted() -> None:
    table = profile_table(of(Other(torch.fft.rfft2), torch.randn(2, 8, 8)))
    assert table.uncounted == {"aten._fft_r2c": 1}
    assert any("aten._fft_r2c" in note for note in table.notes)


def test_features_are_complete_and_finite() -> None:
    p = of(nn.EmbeddingBag(1000, 16), torch.randint(0, 1000, (4, 7)))
    features = p.features
    assert all(math.isfinite(value) and value >= 0 for value in features.values())
    for name in (*OP_CLASSES, "forward", "backward", "optimizer"):
        assert {f"flops.{name}", f"bytes.{name}", f"calls.{name}"} <= set(features)
    assert features["calls.forward"] + features["calls.backward"] + features["calls.optimizer"] == sum(
        group.calls for group in p.op_groups
    )
    assert sum(features[f"bytes.{name}"] for name in OP_CLASSES) == sum(
        group.bytes_read + group.bytes_written for group in p.op_groups
    )
    for name in ("params", "trainable_params", "param_bytes", "batch_size", "layers", "depth"):
        assert features[name] == p[name]
    assert features["peak_bytes"] == p.memory.peak_bytes
    assert features["optimizer_state_bytes"] == p.memory.optimizer_bytes == 8 * 16_000


def test_profile_is_json_and_a_mapping() -> None:
    p = profile(tp.Workload("lstm", batch_size=2))
    content = json.loads(json.dumps(p.to_dict()))
    assert list(content)[:6] == ["params", "layers", "has_conv", "has_rnn", "depth", "avg_layer_size"]
    assert (content["has_conv"], content["has_rnn"]) == (False, True)
    assert content["avg_layer_size"] == content["params"] / content["layers"]
    assert p["forward_flops"] == content["forward_flops"] == p.forward_flops
    assert p.family == "rnn"
    assert set(p) == set(content)


def test_reading_a_profile_loads_no_torch() -> None:
    code = (
        "import sys; from trainpilot.profiling import WorkloadProfile, OpGroup, features_of, profile, profile_table; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
