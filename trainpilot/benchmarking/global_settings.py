"""Global settings that somebody's model may change, so that a worker with changed ones is replaced."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import Any

_TINY = 1e-310  # a denormal double: 0 once denormals are flushed


def global_settings() -> dict[str, Any]:
    """Settings of torch and the interpreter that change how the next configuration runs, by name."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic warnings": torch.is_deterministic_algorithms_warn_only_enabled(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": str(torch.get_autocast_dtype("cpu")),
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "flushing of denormals": float(torch.tensor(_TINY, dtype=torch.float64) * 1) == 0.0,
        "garbage collection": gc.isenabled(),
        "Python's threads": threading.active_count(),
        "clocks": (id(time.perf_counter), id(time.process_time), id(time.monotonic)),
        "recursion limit": sys.getrecursionlimit(),
        "working directory": os.getcwd(),  # noqa: PTH109 - a string to compare
        # PyTorch's compiler announces its cache folder here when it is first imported.
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")},
    }


def changed_settings(before: dict[str, Any]) -> list[str]:
    """Names of the settings that differ from ``before``."""
    return [name for name, value in global_settings().items() if value != before[name]]
