"""Tracing the next configurations of a sweep on all cores, while nothing is measured.

Tracing runs on one core and takes about a quarter of a second, as long as many a measurement. Beside a measurement it
would disturb it, so that several configurations are traced at once, in processes that then wait for the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainpilot.benchmarking.configuration import Configuration
from trainpilot.benchmarking.worker_process import Worker, WorkerLostError

# More helpers need memory and time to start for less and less.
_MOST_PROCESSES = 4
# Of these some are long and some short, so that the processes end about together.
_AT_ONCE = 6


class Tracers:
    """The worker that measures and helpers beside it, which trace configurations side by side.

    Args:
        start: Starts a helper.
        cores: Usable cores; with one there is nothing to gain.
    """

    def __init__(self, start: Callable[[], Worker], cores: int) -> None:
        self._start = start
        self._most_helpers = min(cores, _MOST_PROCESSES) - 1
        self._helpers: list[Worker] = []

    @property
    def at_once(self) -> int:
        """Configurations that are worth tracing in one go; 0 where a helper would not help."""
        return _AT_ONCE * (self._most_helpers + 1) if self._most_helpers else 0

    def trace(
        self, configurations: Sequence[Configuration], worker: Worker, timeout_s: float
    ) -> list[dict[str, Any] | None]:
        """Trace configurations, each in one of the processes; the helpers are idle again when this returns.

        Args:
            configurations: What to trace.
            worker: The worker that measures; if it is lost, it is no longer ``alive``.
            timeout_s: Time limit.

        Returns:
            ``execute.TRACE_FIELDS`` of each, or None where a configuration cannot be traced or its process was lost.
        """
        while len(self._helpers) < min(self._most_helpers, len(configurations) - 1):
            self._helpers.append(self._start())
        workers = [worker, *self._helpers][: len(configurations)]
        found: list[dict[str, Any] | None] = [None] * len(configurations)
        parts = [range(number, len(configurations), len(workers)) for number in range(len(workers))]
        busy: list[tuple[Worker, range]] = []
        for tracer, part in zip(workers, parts, strict=True):
            try:
                tracer.begin_traces([configurations[index].to_dict() for index in part])
                busy.append((tracer, part))
            except WorkerLostError:
                self._forget(tracer)
        for tracer, part in busy:
            try:
                for index, trace in zip(part, tracer.traces(timeout_s), strict=True):
                    found[index] = trace
            except WorkerLostError:
                self._forget(tracer)
        return found

    def close(self) -> None:
        """End the helpers; they are started again when they are needed."""
        for helper in self._helpers:
            helper.close()
        self._helpers.clear()

    def _forget(self, lost: Worker) -> None:
        """Do without a helper that was lost: what ended it would probably end the next one, too."""
        if lost in self._helpers:
            self._helpers.remove(lost)
            self._most_helpers -= 1
