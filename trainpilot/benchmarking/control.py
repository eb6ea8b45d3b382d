"""The control workload: always the same work, run between the windows of every round.

On a shared host the same step takes up to twice as long from one second to the next, without anything that this
machine could see: neighbours take turns on the caches, the memory and the other half of a core. What they slow down in
a step they slow down in the control workload next to it, so that the ratio of both re-measures far better than the
time alone (see the datasheet of the reference dataset).
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_STREAMED = 1 << 20
_TABLE = 1 << 21
_LOOKUPS = 1 << 13
_TINY = 1 << 12
_DISPATCHES = 30
_REPEATS = 40


def control_workload(threads: int) -> Callable[[], float]:
    """A function that runs the control workload once, in under a millisecond, and returns its time in s.

    On one thread it is a pass over memory, lookups scattered over 8 MiB, and a few dispatches of tiny operators, about
    a third of the time each. On several it is the lookups alone: each thread has its part and waits for the others,
    as in every operator of a step. Of the mixtures tried these two left the least re-measurement error.

    Args:
        threads: CPU threads of the steps that it is compared with; they are in use when the function is called.
    """
    import torch

    values, target = torch.ones(_STREAMED), torch.empty(_STREAMED)
    table, tiny = torch.ones(_TABLE), torch.ones(_TINY)
    # A fixed permutation step: the same scattered places on every machine, without touching a random state.
    places = (torch.arange(_LOOKUPS) * 1_000_003) % _TABLE

    def scattered() -> Any:
        return table[places]

    def mixed() -> None:
        torch.add(values, 1.0, out=target)
        scattered()
        for _ in range(_DISPATCHES):
            torch.add(tiny, 1.0)

    work: Callable[[], Any] = mixed if threads == 1 else scattered

    def run() -> float:
        with torch.no_grad():
            begin = time.perf_counter()
            work()
            return time.perf_counter() - begin

    run()
    return run


def measure_control() -> float | None:
    """Median time of the control workload on one thread in s; None if unknown."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        control = control_workload(1)
        return statistics.median(control() for _ in range(_REPEATS))
    finally:
        torch.set_num_threads(threads)
