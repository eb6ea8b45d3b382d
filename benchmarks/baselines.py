"""PyTorch's own RuntimeEstimator on the models of ``real_models.py``, in both of its modes, against measured times.

    python benchmarks/baselines.py --measurements FILE [--threads 1] [--only bert] [--json]

FILE holds the times that ``real_models.py --measurements FILE`` has written. The estimator is made for CUDA: as it
comes, it ends with an error on a machine without one, which is tried and reported as ``stock``. So that it answers at
all, its three ties to CUDA are replaced, and its rows say ``patched``: the peak FLOP/s and the bandwidth are those of
this machine's calibration, and the events of the benchmark mode read the clock of the CPU. The benchmark mode
executes every operator, so it needs the memory of the step and a quiet machine. Each estimate runs in a child process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from real_models import BACKEND, MODELS, errors

from trainpilot.backends import ExecutionSettings, get_backend

MODES = {"cost_model": "operator-level-cost-model", "benchmark": "operator-level-benchmark"}
TIMEOUT_S = 120.0


class CpuEvent:
    """Stands in for ``torch.cuda.Event``; operators on the CPU are done when they return."""

    def __init__(self, enable_timing: bool = False) -> None:  # noqa: ARG002 (the name is that of PyTorch)
        self.at = 0.0

    def record(self, stream: object = None) -> None:  # noqa: ARG002
        """Read the clock."""
        self.at = time.perf_counter()

    def elapsed_time(self, other: CpuEvent) -> float:
        """Time until another event in ms."""
        return (other.at - self.at) * 1e3


def estimate(name: str, threads: int, mode: str, patched: bool) -> dict[str, float]:
    """Ask the estimator about one training step of one model, in this process."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    from trainpilot.profiling.copies import ModelCopier, fake_converter

    resolved = MODELS[name].workload().resolve()
    inputs = resolved.make_inputs(MODELS[name].batch_size)
    calibration = get_backend(BACKEND).calibration(ExecutionSettings(threads=threads))
    assert calibration is not None
    torch.set_num_threads(threads)
    begin = time.perf_counter()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    copier = ModelCopier(fake_converter(fake))
    model = copier.value(resolved.model)
    inputs = copier.inputs(inputs)
    estimator = RuntimeEstimator()
    with contextlib.ExitStack() as stack:
        if patched:
            for place, value in {
                "torch.utils._runtime_estimation.get_device_tflops": lambda dtype: (  # noqa: ARG005
                    calibration.figures["matmul_flops_per_s"] / 1e12
                ),
                "torch.utils._runtime_estimation.get_gpu_dram_gbps": lambda: (
                    calibration.figures["memory_bytes_per_s"] / 1e9
                ),
                "torch.cuda.is_available": lambda: True,
                "torch.cuda.Event": CpuEvent,
                "torch.cuda.current_stream": lambda: None,
                "torch.cuda.synchronize": lambda: None,
            }.items():
                stack.enter_context(mock.patch(place, value))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(fake)
        optimizer = torch.optim.AdamW(model.parameters())
        with estimator(estimate_mode_type=MODES[mode]):
            model(*inputs.args, **inputs.kwargs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"step_time_s": estimator.total_runtime / 1e3, "answer_s": time.perf_counter() - begin}


def ask(name: str, threads: int, mode: str, patched: bool) -> dict[str, Any]:
    """The same in a child process, which an abort of the estimator ends."""
    command = [sys.executable, __file__, "--child", name, "--threads", str(threads), "--mode", mode]
    command += ["--patched"] if patched else []
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer within {TIMEOUT_S:g} s"}
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {ended.returncode}"}
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def compare(measured: dict[str, Any], names: list[str], threads: int) -> dict[str, Any]:
    """All models, both modes."""
    first = names[0]
    result: dict[str, Any] = {
        "schema": 1,
        "threads": threads,
        "stock": {mode: ask(first, threads, mode, patched=False) for mode in MODES},
        "patched": {},
    }
    for mode in MODES:
        rows: list[dict[str, Any]] = []
        for name in names:
            print(f"{mode}: {name}", file=sys.stderr)
            # As they were measured: the estimator's own runs meet the same neighbours on the host.
            rows.append({"model": name, "measured_s": statistics.median(measured[f"{name}/{threads}"]["rounds_s"])})
            rows[-1] |= ask(name, threads, mode, patched=True)
        answered = [row for row in rows if "step_time_s" in row]
        result["patched"][mode] = {
            **errors([row["step_time_s"] for row in answered], [row["measured_s"] for row in answered]),
            "failed": len(rows) - len(answered),
            "median_answer_s": statistics.median(row["answer_s"] for row in answered) if answered else None,
            "rows": rows,
        }
    return result


def main() -> None:
    """Compare, or answer one question of the parent process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=Path, help="times that real_models.py has written")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--only", action="append", help="name of a model; repeatable")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    for option in ("--child", "--mode"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--patched", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(estimate(options.child, options.threads, options.mode, options.patched)))
        return
    if options.measurements is None:
        parser.error("--measurements FILE is needed: real_models.py --measurements FILE makes it")
    measured = json.loads(options.measurements.read_text(encoding="utf-8"))
    names = [name for name in MODELS if f"{name}/{options.threads}" in measured]
    names = [name for name in names if not options.only or name in options.only]
    if not names:
        parser.error(f"{options.measurements} has no time on {options.threads} threads of any model asked for")
    result = compare(measured, names, options.threads)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for mode, found in result["stock"].items():
        print(f"stock {mode}: {found.get('failed', 'answers')}")
    for mode, found in result["patched"].items():
        print(
            f"patched {mode}: {found['n']} models, mean {found['mape']:.1%}, median {found['median_ape']:.1%}, "
            f"largest {found['max_ape']:.1%}, {found['failed']} without an answer, "
            f"{found['median_answer_s']:.2f} s an answer"
        )


if __name__ == "__main__":
    main()
