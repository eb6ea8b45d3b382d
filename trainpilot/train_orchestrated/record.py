"""A training run as a row of the timing dataset, and a place for the row where the store cannot take it."""

from __future__ import annotations

import dataclasses
import logging

from trainpilot import store
from trainpilot.backends import Backend, ExecutionSettings
from trainpilot.benchmarking import Measurement
from trainpilot.benchmarking.contention import Interference, contention
from trainpilot.benchmarking.rows import run_fields
from trainpilot.benchmarking.timing import QUANTILES, count_outliers, quantile
from trainpilot.errors import StoreError, TrainingError
from trainpilot.hardware import Load, usable_cores
from trainpilot.profiling import WorkloadProfile
from trainpilot.settings import load_settings
from trainpilot.train_orchestrated.loop import Run
from trainpilot.workload import Workload
from trainpilot.workload.identity import digest

STORE = "store"
MEMORY = "memory"
"""The store is one in memory, so the row is gone when the process ends."""
_NOISY_IQR = 0.15  # as in the benchmark: the middle half spreads over this share of the median

_logger = logging.getLogger("trainpilot")


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What a row says besides what the loop measured.

    Attributes:
        row_id: Unique id of the row.
        workload: What was trained.
        profile: Its profile.
        backend: Where.
        settings: How.
        load: Load of the machine before the run.
        started_at: Seconds since the epoch.
        threads: CPU threads in use.
        setup_time_s: Building the model and bringing it to the device.
        placement: Where the work really ran, or None if that is not known.
        peak_memory_bytes: Peak memory that the run added, or None.
        others_cores: Cores that something else kept busy during the run, or None.
    """

    row_id: str
    workload: Workload
    profile: WorkloadProfile
    backend: Backend
    settings: ExecutionSettings
    load: Load
    started_at: float
    threads: int
    setup_time_s: float | None
    placement: str | None
    peak_memory_bytes: int | None
    others_cores: float | None


def interference(context: RunContext, run: Run) -> str:
    """Say why a run was taken under contention; empty if it was not."""
    signs = Interference(wall_s=run.wall_time_s, cpu_s=run.cpu_time_s, others_cores=context.others_cores)
    return contention(signs, threads=context.threads, cores=usable_cores(), on_cpu=context.backend.name == "cpu")


def as_measurement(context: RunContext, run: Run) -> Measurement:
    """Make the row of a run.

    The label is the median of the full steps after the first one. An interrupted run is a good row as long as it has
    one; without any it is ``failed``, because there is no label. Only a good row has times.
    """
    workload, profile = context.workload, context.profile
    times = run.full_steps_s
    status, reason = run.status, run.reason
    if status == "ok" and not times:
        status, reason = "failed", reason or "no full step after the first one, so there is no label"
    good = status == "ok"
    calibration = context.backend.calibration(context.settings, run=False)
    spread = quantile(times, 0.75) - quantile(times, 0.25) if times else 0.0
    return Measurement(
        row_id=context.row_id,
        # A training run is never what a sweep would resume, so its key is its own.
        config_key=digest(["training", context.row_id]),
        repetition=0,
        sweep_id="training",
        origin="training",
        created_at=context.started_at,
        **run_fields(
            workload,
            profile,
            backend=context.backend.name,
            settings=context.settings,
            threads=context.threads,
            simulated=context.backend.simulated,
            calibration={} if calibration is None else calibration.figures,
        ),
        actual_placement=context.placement,
        load_average_1min=context.load.load_average_1min,
        cpu_utilization=context.load.cpu_utilization,
        status=status,  # type: ignore[arg-type]  # one of STATUSES
        reason=reason,
        step_time_s=quantile(times, 0.5) if good else None,
        step_quantiles_s={name: quantile(times, share) for name, share in QUANTILES.items()} if good else {},
        steps=len(times) if good else 0,
        outliers=count_outliers(times) if good else 0,
        first_step_s=run.first_step_s if good else None,
        setup_time_s=context.setup_time_s if good else None,
        data_time_s=quantile(run.data_s, 0.5) if good else None,
        cpu_time_s=run.cpu_time_s / run.steps if good else None,
        peak_memory_bytes=context.peak_memory_bytes if good else None,
        loss_finite=None if run.steps == 0 else status != "nonfinite_loss",
        contended=bool(interference(context, run)),
        noisy=bool(times) and spread > _NOISY_IQR * quantile(times, 0.5),
    )


def check_store() -> None:
    """Open the store once, so that a run which it could not keep is refused before it begins.

    Raises:
        UsageError: Its URL is none.
        StoreError: It is damaged, of another schema, or cannot be opened or written.
    """
    with store.open_store() as dataset:
        dataset.require_writable()


def record(row: Measurement) -> tuple[str, str]:
    """Append a row to the store, or write it to a file of its own where the store cannot take it.

    Returns:
        Where it is (``store``, ``memory`` or a path), and a warning, which is empty if all went well.

    Raises:
        TrainingError: There is no place to write to at all; the text is the reason.
    """
    try:
        kept = store.keep_row(row)
    except StoreError as error:
        raise TrainingError(f"the run could not be recorded: {error}") from None
    if kept.problem is not None:
        warning = f"the run could not be recorded in the timing dataset: {kept.note}"
        _logger.warning("%s", warning)
        return str(kept.path), warning
    if _in_memory():
        return MEMORY, "the timing dataset is kept in memory (see TRAINPILOT_STORE): the row is lost with this process"
    return STORE, ""


def _in_memory() -> bool:
    from sqlalchemy.engine import make_url

    url = make_url(load_settings().store_url)
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
