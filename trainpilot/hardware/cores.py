"""How many cores this process may use."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from trainpilot.errors import UsageError
from trainpilot.hardware.cgroups import cpu_quota

logger = logging.getLogger(__name__)


def usable_cores() -> int:
    """Cores that computations should use: those granted, or ``OMP_NUM_THREADS`` where that is less.

    A larger ``OMP_NUM_THREADS`` is not followed, because more threads than cores make every step slower; this is
    logged as a warning, once.
    """
    return cores_by_environment(granted_cores(), os.environ)


def check_threads(threads: int | None) -> None:
    """Refuse more threads than the system grants cores; None means all usable ones.

    Raises:
        UsageError: ``threads`` is more than that.
    """
    if threads is None:
        return
    granted = granted_cores()
    if threads > granted:
        raise UsageError(
            f"{threads} threads were asked, but this process may use {granted} cores: give at most {granted} threads"
        )


def granted_cores(root: Path = Path("/")) -> int:
    """Cores that the system grants: the smaller of CPU affinity and control-group quota, at least 1.

    A fraction of a core in the quota is left out, since a thread on it would be stopped for a part of each period.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder in tests.
    """
    quota = cpu_quota(root)
    affinity = len(allowed_cpus())
    return affinity if quota is None else max(1, min(affinity, math.floor(quota)))


def allowed_cpus() -> frozenset[int]:
    """Numbers of the logical CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))  # macOS has no affinity


def cores_by_environment(granted: int, environ: Mapping[str, str]) -> int:
    """Apply ``OMP_NUM_THREADS`` to the cores that the system grants."""
    text = environ.get("OMP_NUM_THREADS", "").strip()
    if not text:
        return granted
    try:
        asked = int(text.split(",")[0])  # a list gives the threads of each nesting level
    except ValueError:
        asked = 0
    if asked < 1:
        _warn(f"OMP_NUM_THREADS={text!r} is not a number of at least 1 and is ignored; using {granted} threads")
        return granted
    if asked > granted:
        _warn(f"OMP_NUM_THREADS={asked} is more than the {granted} usable cores; using {granted} threads")
        return granted
    return asked


@cache
def _warn(message: str) -> None:
    logger.warning(message)
