"""Timing rows made by a known law, so that the right answers are known."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from trainpilot.benchmarking import Measurement
from trainpilot.profiling.result import MemoryEstimate, OpGroup, WorkloadProfile

FIGURES = {
    "matmul_flops_per_s": 4e10,
    "conv_flops_per_s": 2e10,
    "memory_bytes_per_s": 1e10,
    "dispatch_s": 3e-6,
    "step_overhead_s": 1e-4,
}
FAMILIES = ("mlp", "cnn", "mobilenet", "transformer", "lstm", "embedding", "resnet", "unet", "vit", "vgg")

# The law: seconds per FLOP and byte by class, seconds per dispatch, seconds per step.
FLOP_S = {"matmul": 2e-11, "conv": 8e-11, "depthwise_conv": 9e-10, "attention": 9e-11, "rnn": 7e-11}
BYTE_S = 1.3e-10
CALL_S = 9e-6
STEP_S = 8e-5


def group(
    op_class: str, *, flops: float = 0, size: float = 0, calls: float = 1, phase: str = "forward"
) -> dict[str, Any]:
    """One group of operations; ``size`` bytes are half read and half written."""
    return {
        "phase": phase,
        "op": f"test.{op_class}",
        "op_class": op_class,
        "calls": calls,
        "flops": flops,
        "bytes_read": size / 2,
        "bytes_written": size / 2,
        "shape": {},
    }


def step(
    forward: Mapping[str, tuple[float, float, float]], params: float, calls_per_update: float = 4
) -> list[dict[str, Any]]:
    """A training step: forward as given (class -> FLOPs, bytes, calls), backward twice that, and an Adam update."""
    groups = []
    for op_class, (flops, size, calls) in forward.items():
        groups.append(group(op_class, flops=flops, size=size, calls=calls))
        groups.append(group(op_class, flops=2 * flops, size=2 * size, calls=2 * calls, phase="backward"))
    groups.append(group("optimizer", size=28 * params, calls=calls_per_update, phase="optimizer"))
    return groups


def law_s(groups: Iterable[Mapping[str, Any]]) -> float:
    """Time of a step by the law, in s."""
    total = STEP_S
    for row in groups:
        total += row["flops"] * FLOP_S.get(row["op_class"], 2e-11)
        total += (row["bytes_read"] + row["bytes_written"]) * BYTE_S + row["calls"] * CALL_S
    return total


def model_step(family: str, width: float, batch: float, depth: int) -> tuple[list[dict[str, Any]], float]:
    """A step of a family and its number of parameters."""
    activations = 4.0 * width * batch
    params = depth * width**2
    dense = 2.0 * params * batch
    traffic = depth * activations * 2
    weights = params * 4.0
    elementwise = (0.0, traffic, 2.0 * depth)
    if family in ("mlp", "embedding"):
        forward = {"matmul": (dense, traffic + weights, depth), "elementwise": elementwise}
        if family == "embedding":
            params += 20_000 * width
            forward["embedding"] = (0.0, activations * 16, 1.0)
    elif family in ("transformer", "vit"):
        forward = {
            "matmul": (dense * 8, traffic * 4 + weights, 6.0 * depth),
            "attention": (dense, traffic, depth),
            "norm": (0.0, traffic * 2, 2.0 * depth),
            "elementwise": (0.0, traffic * (3 if family == "vit" else 4), 5.0 * depth),
        }
    elif family == "lstm":
        forward = {"rnn": (dense * 4, traffic * 3, 20.0 * depth), "elementwise": elementwise}
    elif family == "mobilenet":
        forward = {
            "conv": (dense * 10, traffic * 4, depth),
            "depthwise_conv": (dense * 0.4, traffic * 4, depth),
            "norm": (0.0, traffic * 4, 2.0 * depth),
            "elementwise": (0.0, traffic * 4, 2.0 * depth),
        }
    else:
        factor = {"cnn": 10, "resnet": 20, "unet": 30, "vgg": 40}[family]
        forward = {
            "conv": (dense * factor, traffic * 3, depth),
            "norm": (0.0, traffic * 2 * (family == "resnet"), float(depth)),
            "pool": (0.0, traffic, 2.0),
            "elementwise": (0.0, traffic * (2 if family == "unet" else 1), float(depth)),
            "matmul": (dense * 0.05, weights, 1.0),
        }
    return step(forward, params, calls_per_update=2.0 * depth), params


def measurement(
    groups: list[dict[str, Any]],
    step_time_s: float | None,
    *,
    family: str = "mlp",
    model: str = "m",
    batch_size: int = 8,
    params: float = 1000.0,
    repetition: int = 0,
    **changes: Any,
) -> Measurement:
    """A row with status ok; ``changes`` are other fields."""
    features = {"params": params, "param_bytes": 4 * params, "layers": 4.0, "peak_bytes": 16 * params + 1e6}
    workload = changes.pop("workload_hash", f"{family}-{model}-{batch_size}")
    base: dict[str, Any] = {
        "row_id": hashlib.sha256(f"{workload}-{repetition}-{sorted(changes.items(), key=str)}".encode()).hexdigest()[
            :32
        ],
        "config_key": workload,
        "repetition": repetition,
        "sweep_id": "test",
        "origin": "benchmark",
        "created_at": 1.7e9,
        "workload_hash": workload,
        "model_hash": f"{family}-{model}",
        "name": f"{family}-{model}",
        "family": family,
        "model_settings": {},
        "batch_size": batch_size,
        "optimizer": "adam",
        "dtype": "float32",
        "input_signature": [],
        "features": features,
        "op_groups": groups,
        "backend": "cpu",
        "requested_placement": "cpu",
        "actual_placement": "cpu",
        "threads": 1,
        "memory_format": "contiguous",
        "simulated": False,
        "machine_id": "here",
        "machine": {},
        "calibration": dict(FIGURES),
        "versions": {},
        "load_average_1min": None,
        "cpu_utilization": None,
        "phase": "train_step",
        "status": "ok",
        "step_time_s": step_time_s,
    }
    return Measurement(**{**base, **changes})


def dataset(
    *,
    families: Iterable[str] = FAMILIES,
    models: int = 6,
    batches: Iterable[int] = (4, 16, 64),
    noise: float = 0.03,
    repetitions: int = 1,
    seed: int = 0,
    speed: float = 1.0,
    **changes: Any,
) -> list[Measurement]:
    """Rows of several families by the law, times ``speed``, with lognormal noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for family in families:
        for number in range(models):
            width, depth = float(rng.integers(32, 512)), int(rng.integers(2, 12))
            for batch in batches:
                groups, params = model_step(family, width, batch, depth)
                rows.extend(
                    measurement(
                        groups,
                        law_s(groups) * speed * float(np.exp(rng.normal(0, noise))),
                        family=family,
                        model=str(number),
                        batch_size=batch,
                        params=params,
                        repetition=repetition,
                        setup_time_s=0.02 + params * 3e-9,
                        first_step_s=law_s(groups) * 3,
                        peak_memory_bytes=int(2e7 + 20 * params),
                        **changes,
                    )
                    for repetition in range(repetitions)
                )
    return rows


def frame(rows: Iterable[Measurement]) -> pd.DataFrame:
    """Rows as the store gives them: one column per field, dict fields as dicts."""
    names = [field.name for field in dataclasses.fields(Measurement)]
    return pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)


def profile_of(row: Measurement, **changes: Any) -> WorkloadProfile:
    """The profile that tracing the row's workload would give."""
    groups = tuple(OpGroup(**{**item, "calls": int(item["calls"])}) for item in row.op_groups)
    flops = {
        phase: int(sum(g.flops for g in groups if g.phase == phase)) for phase in ("forward", "backward", "optimizer")
    }
    peak = int(row.features["peak_bytes"])
    base: dict[str, Any] = {
        "name": row.name,
        "family": row.family,
        "workload_hash": row.workload_hash,
        "model_hash": row.model_hash,
        "batch_size": row.batch_size,
        "dataset_size": 1000,
        "epochs": 1,
        "optimizer": row.optimizer,
        "dtype": row.dtype,
        "input_signature": (),
        "params": int(row.features["params"]),
        "trainable_params": int(row.features["params"]),
        "buffers": 0,
        "param_bytes": int(row.features["param_bytes"]),
        "layers": 4,
        "depth": 4,
        "has_conv": False,
        "has_rnn": False,
        "avg_layer_size": row.features["params"] / 4,
        "forward_flops": flops["forward"],
        "backward_flops": flops["backward"],
        "optimizer_flops": flops["optimizer"],
        "uncounted_ops": {},
        "data_dependent": False,
        "forward_flops_range": None,
        "op_groups": groups,
        "memory": MemoryEstimate(0, 0, 0, 0, 0, 0, peak),
        "features": dict(row.features),
        "notes": (),
    }
    return WorkloadProfile(**{**base, **changes})
