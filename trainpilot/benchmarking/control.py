"""The control workload: always the same work, run now and then so that drift of the machine itself is known."""

from __future__ import annotations

import time

from trainpilot.benchmarking.timing import TimingLimits, measure_steps

_SIZE = 256
_ELEMENTS = 1 << 20
_LIMITS = TimingLimits(target_s=0.06, warmup_s=0.03, max_s=1.0, min_windows=5)


def measure_control() -> float | None:
    """Time of the control workload in s: a matrix product and a pass over memory on one thread; None if unknown."""
    import torch

    left, right = torch.ones(_SIZE, _SIZE), torch.ones(_SIZE, _SIZE)
    values = torch.ones(_ELEMENTS)

    def step() -> None:
        torch.mm(left, right)
        torch.add(values, 1.0)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_steps(step, lambda: None, clock=time.perf_counter, limits=_LIMITS).step_time_s
    finally:
        torch.set_num_threads(threads)
