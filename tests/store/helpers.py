"""Rows for tests of the store."""

from __future__ import annotations

import uuid
from typing import Any

from trainpilot.benchmarking import Measurement, OperatorTiming


def measurement(**changes: Any) -> Measurement:
    """A row with every field set."""
    fields: dict[str, Any] = {
        "row_id": uuid.uuid4().hex,
        "config_key": "k" * 32,
        "repetition": 0,
        "sweep_id": "quick-12345678",
        "origin": "benchmark",
        "created_at": 1_700_000_000.25,
        "workload_hash": "w" * 32,
        "model_hash": "m" * 32,
        "name": "mlp",
        "family": "mlp",
        "model_settings": {"width": 8, "norm": "none", "bias": True, "dropout": 0.1},
        "batch_size": 4,
        "optimizer": "adamw",
        "dtype": "float32",
        "input_signature": [[[4, 784], "float32"]],
        "features": {"flops.matmul": 1.5e6, "params": 10.0},
        "op_groups": [{"op": "aten.addmm", "phase": "forward", "calls": 2, "shape": {"m": 4}}],
        "backend": "cpu",
        "requested_placement": "cpu",
        "actual_placement": "cpu",
        "threads": 1,
        "memory_format": "contiguous",
        "simulated": False,
        "machine_id": "machine",
        "machine": {"cpu_model": "test", "cores_usable": 2},
        "calibration": {"matmul_flops_per_s": 1e10},
        "versions": {"torch": "2.13.0"},
        "load_average_1min": 0.25,
        "cpu_utilization": 0.5,
        "phase": "train_step",
        "status": "ok",
        "step_time_s": 0.0123,
        "step_quantiles_s": {"min": 0.01, "p25": 0.011, "median": 0.0123, "max": 0.02},
        "steps": 100,
        "outliers": 3,
        "first_step_s": 0.05,
        "setup_time_s": 0.1,
        "data_time_s": 0.001,
        "cpu_time_s": 0.0122,
        "involuntary_switches": 7,
        "peak_memory_bytes": 5_000_000_000,
        "energy_j": None,
        "loss_finite": True,
        "contended": False,
        "control_time_s": 0.0007,
        "noisy": False,
    }
    return Measurement(**fields | changes)


def operators() -> list[OperatorTiming]:
    """Two operator timings."""
    return [
        OperatorTiming("aten.addmm", "forward", "matmul", [[4, 784], [784, 8], [8]], 1, 1e-4, 0.98, True),
        OperatorTiming("aten.mm", "backward", "matmul", [[8, 4], [4, 784]], 2, 2e-4, 0.98, True),
    ]
