"""Running a sweep: isolated workers, rounds far apart, one row at a time, exact resumption."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from trainpilot.backends import get_backend
from trainpilot.benchmarking.ahead import Tracers
from trainpilot.benchmarking.configuration import Configuration, OperatorTiming
from trainpilot.benchmarking.execute import TRACE_FIELDS
from trainpilot.benchmarking.measurement import Measurement
from trainpilot.benchmarking.rows import Site, build_row, operator_timings, this_site
from trainpilot.benchmarking.sweep import Sweep
from trainpilot.benchmarking.worker_process import DEFAULT_EXECUTOR, Worker, WorkerLostError
from trainpilot.errors import BackendUnusableError, MeasurementError, TrainPilotError, UsageError
from trainpilot.hardware import memory_available_bytes
from trainpilot.settings import load_settings

CONTROL_EVERY_S = 20.0
_CONTROL_TIMEOUT_S = 60.0
# Starting a worker imports torch, which a slow disk can make long; it is not the configuration's fault.
_START_TIMEOUT_S = 120.0
_MEMORY_SHARE = 0.9
# After so many repetitions in a row that were contended again, the machine will not be quiet soon.
_MOST_VAIN_REPETITIONS = 3

Sink = Callable[[Measurement, Sequence[OperatorTiming]], None]
KnownTrace = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True)
class PlannedRow:
    """One configuration in one round.

    Attributes:
        configuration: What will be measured.
        key: Its key.
        repetition: Number of the round.
    """

    configuration: Configuration
    key: str
    repetition: int


@dataclass(frozen=True)
class SweepProgress:
    """Where a running sweep is.

    Attributes:
        done: Rows that are there, those of earlier runs included.
        total: Rows of the whole sweep (of this shard).
        elapsed_s: Time since the start.
        remaining_s: Estimated time to the end, at most what is left of the budget; None before the first row.
        title: The configuration that was just measured.
        status: Its status, or ``skipped``.
    """

    done: int
    total: int
    elapsed_s: float
    remaining_s: float | None
    title: str
    status: str


@dataclass
class SweepSummary:
    """What a sweep did.

    Attributes:
        sweep_id: The sweep.
        total: Rows of the whole sweep (of this shard).
        already: Rows that were there before.
        counts: New rows by status.
        contended: New rows that are marked as taken under contention.
        dropped: New rows that were not kept, because somebody else had put the same ones into the store meanwhile.
        skipped: Configurations that were not tried, with the reason.
        skipped_rows: Rows that are missing for it.
        planned: Titles of the rows that would be measured; only of a dry run.
        elapsed_s: Time that it took.
        stepping_s: Time of it inside training steps.
        stopped: Why it ended before its end: ``budget``, ``interrupted``, or "".
    """

    sweep_id: str
    total: int
    already: int
    counts: dict[str, int] = field(default_factory=dict)
    contended: int = 0
    dropped: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    skipped_rows: int = 0
    planned: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    stepping_s: float = 0.0
    stopped: str = ""

    @property
    def measured(self) -> int:
        """New rows."""
        return sum(self.counts.values())

    @property
    def remaining(self) -> int:
        """Rows that are still missing; skipped configurations are not."""
        return self.total - self.already - self.measured - self.skipped_rows

    def __str__(self) -> str:
        counts = ", ".join(f"{number} {status}" for status, number in sorted(self.counts.items())) or "none"
        parts = [f"{self.sweep_id}: {self.measured} rows measured in {self.elapsed_s:.0f} s ({counts})"]
        if self.already:
            parts.append(f"{self.already} were there before")
        if self.contended:
            parts.append(f"{self.contended} taken under contention")
        if self.dropped:
            parts.append(f"{self.dropped} of them dropped: another run had put the same rows there meanwhile")
        if self.skipped:
            parts.append(f"{len(self.skipped)} configurations skipped as too expensive")
        if self.stopped:
            parts.append(f"stopped ({self.stopped}), {self.remaining} of {self.total} rows missing")
        return "; ".join(parts)


def plan_sweep(
    sweep: Sweep,
    site: Site,
    *,
    backends: Sequence[str] | None = None,
    shard: tuple[int, int] = (1, 1),
    first_repetition: int = 0,
) -> list[list[PlannedRow]]:
    """The rows of a sweep in the order in which they are measured, round by round.

    Args:
        sweep: The sweep.
        site: Where it runs.
        backends: Backends; default: those of the sweep.
        shard: (i, n): every n-th configuration, from the i-th.
        first_repetition: Number of the first round.

    Raises:
        UsageError: A backend does not exist, or the sweep is wrong or holds nothing for this machine.
    """
    for name in backends or sweep.backends:
        get_backend(name)
    configurations = sweep.configurations(cores=site.cores, backends=backends)
    if not configurations:
        raise UsageError(
            f"sweep {sweep.name} holds nothing for this machine: it has {site.cores} usable cores, and every "
            "configuration asks for more threads"
        )
    configurations = configurations[shard[0] - 1 :: shard[1]]
    keys = [configuration.key(site.machine.machine_id, site.versions) for configuration in configurations]
    return [
        [PlannedRow(configurations[index], keys[index], round_) for index in sweep.order(len(configurations), round_)]
        for round_ in range(first_repetition, first_repetition + sweep.rounds)
    ]


def run_sweep(
    sweep: Sweep,
    *,
    sink: Sink,
    finished: Collection[tuple[str, int]] = frozenset(),
    backends: Sequence[str] | None = None,
    budget_s: float | None = None,
    shard: tuple[int, int] = (1, 1),
    first_repetition: int = 0,
    progress: Callable[[SweepProgress], None] | None = None,
    site: Site | None = None,
    executor: str = DEFAULT_EXECUTOR,
    known_trace: KnownTrace | None = None,
) -> SweepSummary:
    """Measure a sweep, handing each row to ``sink`` the moment it is known.

    Each round runs in a worker of its own, so that rounds differ in process as well as in time. A row that was
    taken under contention is held back and repeated at the end of its round as often as the sweep says; under a
    budget at the end of the whole sweep, since a new row is worth more than a better one. Once several repetitions
    in a row were contended again, the machine is busy, and what is held back is kept, marked.

    Before some rows are measured, their steps are traced on all cores; while a row is measured nothing else runs.

    Args:
        sweep: The sweep.
        sink: Takes a row and its operator timings.
        finished: (key, repetition) of the rows that are there already.
        backends: Backends; default: those of the sweep.
        budget_s: Time limit in s; no row is started that would probably not end within it.
        shard: (i, n): part i of n of the sweep.
        first_repetition: Number of the first round.
        progress: Called after each row.
        site: Where it runs; default: here.
        executor: Module that measures in the worker.
        known_trace: Gives the trace of a configuration (``execute.TRACE_FIELDS``) by its key, or None, so that its
            later rounds need not trace it again.

    Returns:
        What was done, also after Ctrl-C (``stopped`` is ``interrupted`` then).

    Raises:
        BackendUnusableError: A backend cannot be used here.
        MeasurementError: The worker does not start.
        UsageError: The sweep is wrong.
    """
    site = site or this_site()
    _require_usable(backends or sweep.backends)
    rounds = plan_sweep(sweep, site, backends=backends, shard=shard, first_repetition=first_repetition)
    run = _SweepRun(sweep, site, sink, budget_s, progress, executor, known_trace)
    return run.run(rounds, finished)


def _require_usable(names: Sequence[str]) -> None:
    for name in names:
        # The CPU runs this program, and a simulated device exists everywhere.
        backend = get_backend(name)
        if name == "cpu" or backend.simulated:
            continue
        usability = backend.probe(load_settings().probe_timeout_s)
        if not usability.usable:
            raise BackendUnusableError(f"backend {name} cannot be used here: {usability.reason}")


@dataclass
class _Held:
    """A row taken under contention, waiting for its repetition."""

    planned: PlannedRow
    row: Measurement
    operators: list[OperatorTiming]
    attempts: int


class _BudgetSpentError(Exception):
    """The row in flight ran into the end of the budget."""


class _SweepRun:
    def __init__(
        self,
        sweep: Sweep,
        site: Site,
        sink: Sink,
        budget_s: float | None,
        progress: Callable[[SweepProgress], None] | None,
        executor: str,
        known_trace: KnownTrace | None,
    ) -> None:
        self._sweep = sweep
        self._site = site
        self._sink = sink
        self._budget_s = budget_s
        self._progress = progress
        self._executor = executor
        self._known_trace = known_trace
        self._begin = time.monotonic()
        self._worker: Worker | None = None
        self._counts: Counter[str] = Counter()
        self._row_times: list[float] = []
        self._tracing_s = 0.0
        self._traced = 0
        self._traces: dict[str, Mapping[str, Any] | None] = {}
        self._control_at: float | None = None
        self._control_s: float | None = None
        self._best_control_s: float | None = None
        self._held: deque[_Held] = deque()
        self._vain_repetitions = 0
        self._skipped_keys: set[str] = set()
        self._summary = SweepSummary(sweep.sweep_id, 0, 0)
        settings = load_settings()
        self._memory_bytes = settings.worker_memory_bytes or int(_MEMORY_SHARE * memory_available_bytes())
        self._tracers = Tracers(self._new_worker, site.cores)

    def run(self, rounds: list[list[PlannedRow]], finished: Collection[tuple[str, int]]) -> SweepSummary:
        summary = self._summary
        summary.total = sum(len(round_) for round_ in rounds)
        pending = [[row for row in round_ if (row.key, row.repetition) not in finished] for round_ in rounds]
        summary.already = summary.total - sum(len(round_) for round_ in pending)
        try:
            for round_ in pending:
                if not self._run_round(round_):
                    summary.stopped = "budget"
                    break
                if self._budget_s is None:
                    self._repeat_held()
                self._close_worker()
                self._tracers.close()
            else:
                self._repeat_held()
        except KeyboardInterrupt:
            summary.stopped = "interrupted"
        finally:
            self._close_worker()
            self._tracers.close()
            self._keep_all_held()
        summary.counts = dict(self._counts)
        summary.elapsed_s = time.monotonic() - self._begin
        return summary

    def _run_round(self, rows: list[PlannedRow]) -> bool:
        """Measure the rows of one round; False if the budget ended it."""
        for number, planned in enumerate(rows):
            if planned.key in self._skipped_keys:
                self._skip(planned)
                continue
            if self._lacks_trace(planned):
                self._trace_ahead(rows[number:])
            if not self._measure(planned, None):
                return False
        return True

    def _lacks_trace(self, planned: PlannedRow) -> bool:
        """Whether the step must still be traced; what the store knows is taken from there.

        A model that is somebody's code is traced where it is measured, each time: what it imports may have changed,
        and it may do anything to the process.
        """
        if planned.configuration.uses_code or planned.key in self._skipped_keys:
            return False
        if planned.key not in self._traces and planned.repetition and self._known_trace is not None:
            known = self._known_trace(planned.key)
            if known is not None:
                self._traces[planned.key] = known
        return planned.key not in self._traces

    def _trace_ahead(self, rows: list[PlannedRow]) -> None:
        """Trace the first one of ``rows`` and some of those after it, no more than the budget has time for."""
        most, left, typical = self._tracers.at_once, self._left(), self._typical_s()
        if left is not None and typical > 0:
            most = min(most, math.floor(left / typical))
        others = itertools.islice((row for row in rows[1:] if self._lacks_trace(row)), max(most - 1, 0))
        chosen = [rows[0], *others]
        if len(chosen) == 1:
            return
        begin, worker = time.monotonic(), self._running_worker()
        timeout_s = _START_TIMEOUT_S if left is None else min(_START_TIMEOUT_S, max(left, 1.0))
        found = self._tracers.trace([row.configuration for row in chosen], worker, timeout_s)
        self._traces |= {row.key: trace for row, trace in zip(chosen, found, strict=True)}
        if not worker.alive:
            self._worker = None
        self._tracing_s += time.monotonic() - begin
        self._traced += len(chosen)

    def _repeat_held(self) -> None:
        """Repeat the rows that were taken under contention, until the machine proves busy or the budget is spent."""
        self._vain_repetitions = 0
        while self._held and self._vain_repetitions < _MOST_VAIN_REPETITIONS:
            held = self._held.popleft()
            try:
                if not self._measure(held.planned, held):
                    break
            except KeyboardInterrupt:
                self._held.append(held)
                raise
        self._keep_all_held()

    def _measure(self, planned: PlannedRow, held: _Held | None) -> bool:
        """Measure one row; False if the budget is spent."""
        left = self._left()
        if left is not None and left <= self._typical_s():
            if held is not None:
                self._held.append(held)
            return False
        if held is not None and held.row.op_groups:
            self._traces[planned.key] = {name: getattr(held.row, name) for name in TRACE_FIELDS}
        try:
            reply = self._ask(planned)
        except _BudgetSpentError:
            if held is not None:
                self._held.append(held)
            return False
        self._traces.pop(planned.key, None)
        self._summary.stepping_s += reply["stepping_s"]
        if reply["skipped"]:
            self._skipped_keys.add(planned.key)
            self._summary.skipped[planned.configuration.title] = reply["skipped"]
            self._skip(planned)
            return True
        row = build_row(
            planned.configuration,
            self._site,
            key=planned.key,
            repetition=planned.repetition,
            sweep_id=self._sweep.sweep_id,
            status=reply["status"],
            reason=reply["reason"],
            labels=reply["labels"],
            contended=bool(reply["contended"]),
            control_time_s=self._control_s,
        )
        found = _Held(planned, row, operator_timings(reply["operators"]), 1 if held is None else held.attempts + 1)
        if held is not None:
            self._vain_repetitions = self._vain_repetitions + 1 if row.contended else 0
        if row.contended and found.attempts <= self._sweep.repeat_contended:
            self._held.append(found)
        else:
            self._keep(found)
        return True

    def _ask(self, planned: PlannedRow) -> dict[str, Any]:
        """The worker's answer, or what its loss means."""
        timeout_s, of_budget = self._sweep.timeout_s, False
        trace = None if planned.configuration.uses_code else self._traces.get(planned.key)
        begin = time.monotonic()
        try:
            worker = self._ready_worker()
            begin = time.monotonic()  # starting a worker is no part of a row: most rows find one
            left = self._left()
            if left is not None and left < timeout_s:
                timeout_s, of_budget = max(left, 1.0), True
            reply = worker.measure(self._task(planned, trace), timeout_s)
        except WorkerLostError as lost:
            self._worker = None
            if lost.status == "timeout" and of_budget:
                raise _BudgetSpentError from None
            self._row_times.append(time.monotonic() - begin)
            return {
                "status": lost.status,
                "reason": lost.reason,
                "labels": trace or {},
                "operators": [],
                "contended": "",
                "skipped": "",
                "stepping_s": 0.0,
            }
        self._row_times.append(time.monotonic() - begin)
        if reply["changed"] or reply["status"] == "oom":
            self._close_worker()
        return reply

    def _task(self, planned: PlannedRow, trace: Mapping[str, Any] | None) -> Mapping[str, Any]:
        configuration, ratio = planned.configuration, None
        if self._control_s is not None and self._best_control_s is not None:
            ratio = self._control_s / self._best_control_s
        dtype = configuration.workload["dtype"]
        return {
            "configuration": configuration.to_dict(),
            "timing": asdict(self._sweep.timing),
            "statistic": self._sweep.statistic,
            "cap_s": self._sweep.cap_s,
            "operator_steps": self._sweep.operator_steps if planned.repetition == 0 else 0,
            "calibration": dict(self._site.calibration(configuration.backend, configuration.threads, dtype)),
            "cores": self._site.cores,
            "control_ratio": ratio,
            "trace": trace,
        }

    def _new_worker(self) -> Worker:
        return Worker(self._executor, self._memory_bytes)

    def _running_worker(self) -> Worker:
        """The worker that measures; it may still be starting."""
        if self._worker is None:
            self._worker, self._control_at = self._new_worker(), None
        return self._worker

    def _ready_worker(self) -> Worker:
        """A worker that answers; the control workload is its first request and comes back now and then.

        This control tells the contention guard how fast the machine is against the best of the sweep, always on one
        thread and over dozens of runs: the one inside each row (see ``control``) varies threefold on several threads
        of a quiet machine, which its neighbourhood to the windows divides out, but which says nothing of others.
        """
        worker, now = self._running_worker(), time.monotonic()
        fresh = self._control_at is None
        if self._control_at is None or now - self._control_at >= CONTROL_EVERY_S:
            try:
                control = worker.control(_START_TIMEOUT_S if fresh else _CONTROL_TIMEOUT_S)
            except WorkerLostError as lost:
                self._worker = None
                if not fresh:  # a new one may do better
                    return self._ready_worker()
                raise MeasurementError(f"the benchmark worker does not start: {lost.reason}") from None
            self._control_at = time.monotonic()
            if control is not None:
                self._control_s = control
                self._best_control_s = min(control, self._best_control_s or control)
        return worker

    def _keep(self, held: _Held) -> None:
        self._sink(held.row, held.operators)
        self._counts[held.row.status] += 1
        self._summary.contended += held.row.contended
        self._report(held.planned, held.row.status)

    def _keep_all_held(self) -> None:
        """Keep what still waits for a repetition: better marked than lost."""
        failure: TrainPilotError | None = None
        while self._held:
            try:
                self._keep(self._held.popleft())
            except TrainPilotError as error:  # the others must get their chance to be kept, too
                failure = failure or error
        if failure is not None:
            raise failure

    def _skip(self, planned: PlannedRow) -> None:
        self._summary.skipped_rows += 1
        self._report(planned, "skipped")

    def _report(self, planned: PlannedRow, status: str) -> None:
        if self._progress is None:
            return
        summary = self._summary
        done = summary.already + sum(self._counts.values()) + summary.skipped_rows
        remaining = None
        if self._row_times:
            remaining = self._typical_s() * (summary.total - done)
            left = self._left()
            if left is not None:
                remaining = min(remaining, max(left, 0.0))
        self._progress(
            SweepProgress(
                done=done,
                total=summary.total,
                elapsed_s=time.monotonic() - self._begin,
                remaining_s=remaining,
                title=planned.configuration.title,
                status=status,
            )
        )

    def _typical_s(self) -> float:
        """Time that a row takes, its trace included; 0 before the first one."""
        if not self._row_times:
            return 0.0
        return sum(self._row_times) / len(self._row_times) + self._tracing_s / max(self._traced, 1)

    def _left(self) -> float | None:
        return None if self._budget_s is None else self._budget_s - (time.monotonic() - self._begin)

    def _close_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None
