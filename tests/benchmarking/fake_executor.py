"""An executor without torch, so that faults of workers and sweeps are tried in milliseconds.

The batch size of the configuration decides what happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

RAISES, HANGS, ALLOCATES, ABORTS, PRINTS, EXITS, IS_KILLED, IS_OOM, CHANGES, IS_EXPENSIVE, IS_CONTENDED = range(
    1001, 1012
)
ENDS_TRACING = 3001
TRACED_HANG, TRACED_CONTENDED = 2101, 2102
# A child that holds all pipes open stays behind; garbage is written into every file that is open.
LEAVES_A_CHILD, WRITES_EVERYWHERE = 1012, 1013
STEP_S = 0.001
LABELS = {
    "input_signature": [[[1, 784], "float32"]],
    "features": {"flops.matmul": 1e6, "params": 10.0},
    "actual_placement": "cpu",
    "step_time_s": STEP_S,
    "step_quantiles_s": {"min": STEP_S, "median": STEP_S, "max": STEP_S},
    "steps": 10,
    "first_step_s": 2 * STEP_S,
    "setup_time_s": 0.01,
    "cpu_time_s": STEP_S,
    "loss_finite": True,
    "cpu_utilization": 0.0,
}


def start() -> None:
    """Nothing to get out of the way."""


def control() -> float | None:
    return 0.0005


def trace(configurations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
    """Only batch sizes from 2001 on can be traced; the trace tells the process that made it."""
    found: list[dict[str, Any] | None] = []
    for configuration in configurations:
        batch_size = configuration["workload"]["batch_size"]
        if batch_size == ENDS_TRACING:
            os._exit(3)
        traced = {"features": {"traced_by": float(os.getpid())}, "op_groups": [{"op": "aten.mm"}]}
        found.append(traced if batch_size > 2000 else None)
    return found


def execute(task: Mapping[str, Any]) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "status": "ok",
        "reason": "",
        # The worker that answered, for tests of when it is replaced.
        "labels": LABELS | {"data_time_s": float(os.getpid())} | (task.get("trace") or {}),
        "operators": [],
        "contended": "",
        "skipped": "",
        "stepping_s": 0.0,
        "changed": [],
    }
    match task["configuration"]["workload"]["batch_size"]:
        case 1001:
            reply |= {"status": "failed", "reason": "RuntimeError: no", "labels": {}}
        case 1002 | 2101:
            time.sleep(3600)
        case 1003:
            kept = []
            while True:
                kept.append(bytearray(16 << 20))
        case 1004:
            sys.stderr.write("Fatal: about to abort\n")
            os.abort()
        case 1005:
            for _ in range(64):
                sys.stdout.write("{" * (1 << 16) + "\n")
                os.write(1, b"\n[1, 2]\n" * 1000)
        case 1006:
            os._exit(3)
        case 1007:
            os.kill(os.getpid(), signal.SIGKILL)
        case 1008:
            reply |= {"status": "oom", "reason": "OutOfMemoryError: x", "labels": {}}
        case 1009:
            reply["changed"] = ["default dtype"]
        case 1010:
            reply |= {"skipped": "a step would take about 99.0 s, the sweep's cap is 1 s", "labels": {}}
        case 1011 | 2102:
            reply["contended"] = "something else kept 1.0 of 2 cores busy"
        case 1012:
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(3)
        case 1013:
            for file in range(1, 30):
                with contextlib.suppress(OSError):
                    os.write(file, b'{"id": 1, "answer": 5}\n[]\n"x"\n\xff\n{"half":')
        case _:
            time.sleep(STEP_S)
    return reply
