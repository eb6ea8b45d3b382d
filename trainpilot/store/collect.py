"""Collecting a sweep into the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.benchmarking import (
    Measurement,
    OperatorTiming,
    PlannedRow,
    Sweep,
    SweepProgress,
    SweepSummary,
    load_sweep,
    plan_sweep,
    run_sweep,
    this_site,
)
from trainpilot.benchmarking.rows import Site
from trainpilot.benchmarking.worker_process import DEFAULT_EXECUTOR
from trainpilot.settings import load_settings
from trainpilot.store.spilled import keep_row
from trainpilot.store.store import TimingStore, open_store


def benchmark(
    sweep: Sweep | str | Path,
    *,
    backends: Sequence[str] | None = None,
    budget_s: float | None = None,
    store: TimingStore | str | None = None,
    resume: bool = True,
    dry_run: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
    shard: tuple[int, int] = (1, 1),
    site: Site | None = None,
    executor: str = DEFAULT_EXECUTOR,
    calibrate: bool = True,
) -> SweepSummary:
    """Measure a sweep and keep every row in the store the moment it is known.

    Args:
        sweep: A sweep, the name of one that comes with the library, or a TOML file.
        backends: Backends; default: those of the sweep.
        budget_s: Time limit in s.
        store: A store or its URL; default: that of the settings.
        resume: Leave out the rows that are there already; if False, measure everything once more as further
            repetitions.
        dry_run: Measure nothing; ``planned`` of the summary lists what would be measured.
        progress: Called after each row.
        shard: (i, n): part i of n, to split a sweep over machines that share a store.
        site: Where it runs; default: here.
        executor: Module that measures in the worker.
        calibrate: Probe each setting that the sweep uses first, a few seconds each, where no figures are cached: a
            predictor starts from them. The time counts towards the budget.

    Returns:
        What was done, also after Ctrl-C (``stopped`` is ``interrupted`` then).

    Raises:
        UsageError: The sweep does not exist or is wrong.
        BackendUnusableError: A backend cannot be used here.
        MeasurementError: The worker does not start.
        StoreError: The store cannot be used. Where a row cannot be written, it is kept in a file that the text
            names, and the sweep ends.
    """
    if not isinstance(sweep, Sweep):
        sweep = load_sweep(sweep)
    site = site or this_site()
    with ExitStack() as stack:
        target = store if isinstance(store, TimingStore) else stack.enter_context(open_store(store))
        finished = target.finished_keys()
        rounds = plan_sweep(sweep, site, backends=backends, shard=shard)
        first_repetition = 0
        if not resume:
            keys = {row.key for round_ in rounds for row in round_}
            first_repetition = 1 + max((number for key, number in finished if key in keys), default=-1)
        if dry_run:
            rounds = plan_sweep(sweep, site, backends=backends, shard=shard, first_repetition=first_repetition)
            rows = [row for round_ in rounds for row in round_]
            missing = [row for row in rows if (row.key, row.repetition) not in finished]
            return SweepSummary(
                sweep_id=sweep.sweep_id,
                total=len(rows),
                already=len(rows) - len(missing),
                planned=tuple(f"{row.configuration.title}, round {row.repetition + 1}" for row in missing),
            )

        target.require_writable()
        begin = time.monotonic()
        if calibrate:
            _calibrate(rounds, finished)
        if budget_s is not None:
            budget_s = max(budget_s - (time.monotonic() - begin), 0.0)

        dropped = 0

        def sink(measurement: Measurement, operators: Sequence[OperatorTiming]) -> None:
            nonlocal dropped
            kept = keep_row(measurement, operators, target)
            if kept.problem is not None:
                raise type(kept.problem)(kept.note)
            dropped += not kept.new

        summary = run_sweep(
            sweep,
            sink=sink,
            finished=finished,
            backends=backends,
            budget_s=budget_s,
            shard=shard,
            first_repetition=first_repetition,
            progress=progress,
            site=site,
            executor=executor,
            known_trace=lambda key: target.trace_of(key, site.versions),
        )
        summary.dropped = dropped
        return summary


def _calibrate(rounds: list[list[PlannedRow]], finished: set[tuple[str, int]]) -> None:
    """Probe every backend at every setting that is still to be measured."""
    missing = [row.configuration for round_ in rounds for row in round_ if (row.key, row.repetition) not in finished]
    for name, threads, dtype in sorted({(c.backend, c.threads, c.settings.dtype) for c in missing}):
        backend = get_backend(name)
        if name == "cpu" or backend.probe(load_settings().probe_timeout_s).usable:
            backend.calibration(ExecutionSettings(threads=threads, dtype=dtype))
