"""Calibration figures of a backend, probed once and cached as JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from trainpilot.files import write_atomically
from trainpilot.hardware.cores import usable_cores
from trainpilot.hardware.fingerprint import machine
from trainpilot.hardware.others import MOST_OTHERS_SHARE, OthersMeter
from trainpilot.hardware.probes import PROBES_VERSION, run_probes
from trainpilot.hardware.types import Calibration
from trainpilot.hardware.versions import versions
from trainpilot.settings import load_settings

logger = logging.getLogger(__name__)

_SCHEMA = 1
_ATTEMPTS = 3
# Disturbed figures are not probed again before: each attempt takes seconds, and a busy machine stays busy for a while.
_RETRY_AFTER_S = 600.0
# Only these decide the speed of a kernel; another xgboost does not make the figures stale.
_DECISIVE = ("python", "torch", "numpy", "mkl", "intel-openmp", "triton", "coremltools")


def calibrate(
    device: str = "cpu",
    backend: str = "cpu",
    threads: int | None = None,
    dtype: str = "float32",
    folder: Path | None = None,
    *,
    refresh: bool = False,
) -> Calibration:
    """Return the figures of a backend; probe them (a few seconds) unless they are cached.

    While something else uses the machine, the probes are repeated and the best of each figure is kept; if it was never
    quiet, the figures are marked ``disturbed`` and probed again when they are asked for ten minutes later.

    Cached figures are those of the same machine, backend, threads, dtype, library versions and kind of probes. A
    damaged file is probed again. Where the folder cannot be written, the figures are returned all the same.

    Args:
        device: The torch device.
        backend: Name of the backend, part of the cache's key.
        threads: CPU threads; default: all usable ones.
        dtype: Compute type.
        folder: Folder of the cache; default: that of the settings.
        refresh: Probe even if figures are cached.
    """
    threads = usable_cores() if threads is None else threads
    folder = load_settings().calibration_dir if folder is None else folder
    known = None if refresh else cached_calibration(backend, threads, dtype, folder)
    if known is not None and (not known.disturbed or 0 <= time.time() - known.created_at < _RETRY_AFTER_S):
        return known
    # Disturbed figures are improved a little now and then, until the machine was quiet once.
    figures, disturbed = _probe(device, threads, dtype, {} if known is None else known.figures)
    calibration = Calibration(
        machine_id=machine().machine_id,
        backend=backend,
        threads=threads,
        dtype=dtype,
        figures=figures,
        versions=decisive_versions(),
        created_at=time.time(),
        disturbed=disturbed,
    )
    if disturbed:
        logger.warning(
            "calibration: something else used the machine meanwhile, so %s may look slower than it is: "
            "run trainpilot calibrate when it is quiet",
            backend,
        )
    path = cache_path(backend, threads, dtype, folder)
    try:
        write_atomically(
            path,
            json.dumps(
                {"schema": _SCHEMA, "probes": PROBES_VERSION, **asdict(calibration)}, indent=1, allow_nan=False
            ).encode(),
        )
    except OSError as error:
        logger.warning("calibration: cannot be kept in %s: %s", path, error)
    return calibration


def _probe(device: str, threads: int, dtype: str, known: Mapping[str, float]) -> tuple[dict[str, float], bool]:
    """The best figures of several attempts, and whether something else used the machine in every one of them.

    Somebody else's work can only make a probe look slower, so the fastest value of each figure is the truest.
    """
    figures = dict(known)
    limit = MOST_OTHERS_SHARE * usable_cores()
    for _ in range(1 if known else _ATTEMPTS):
        others = OthersMeter()
        for name, value in run_probes(device, threads, dtype).items():
            better = max if name.endswith("_per_s") else min
            figures[name] = better(figures.get(name, value), value)
        busy = others.cores()
        if device != "cpu" or busy is None or busy <= limit:
            return figures, False
    return figures, True


def cached_calibration(backend: str, threads: int | None, dtype: str, folder: Path | None = None) -> Calibration | None:
    """Return the cached figures, or None where there are none that fit.

    Args:
        backend: Name of the backend.
        threads: CPU threads; None: all usable ones.
        dtype: Compute type.
        folder: Folder of the cache; default: that of the settings.
    """
    threads = usable_cores() if threads is None else threads
    folder = load_settings().calibration_dir if folder is None else folder
    path = cache_path(backend, threads, dtype, folder)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("calibration: %s cannot be read and is ignored: %s", path, error)
        return None
    try:
        calibration = _parse(text)
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("calibration: %s is damaged and is ignored: %s", path, error)
        return None
    # The name of the file says all this already; a file that was copied or renamed must not pass.
    expected = (machine().machine_id, backend, threads, dtype, decisive_versions())
    found = (
        calibration.machine_id,
        calibration.backend,
        calibration.threads,
        calibration.dtype,
        dict(calibration.versions),
    )
    if found != expected:
        logger.warning("calibration: %s belongs to another machine or setting and is ignored", path)
        return None
    return calibration


def cache_path(backend: str, threads: int, dtype: str, folder: Path) -> Path:
    """File of the cached figures."""
    identity = json.dumps([machine().machine_id, PROBES_VERSION, decisive_versions()], sort_keys=True)
    return folder / f"{backend}-{threads}-{dtype}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def decisive_versions() -> dict[str, str]:
    """Versions of the libraries that decide the speed of kernels."""
    return {name: version for name, version in versions().items() if name in _DECISIVE}


def _parse(text: str) -> Calibration:
    content = json.loads(text)
    if not isinstance(content, dict):
        raise TypeError("not a JSON object")
    if (content["schema"], content["probes"]) != (_SCHEMA, PROBES_VERSION):
        raise ValueError(f"schema {content['schema']!r}, probes {content['probes']!r}")
    figures = content["figures"]
    if not isinstance(figures, dict) or not figures:
        raise ValueError("it holds no figures")
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} is {value!r}, not a positive number")
    disturbed = content["disturbed"]
    if not isinstance(disturbed, bool):
        raise TypeError(f"disturbed is {disturbed!r}, not true or false")
    return Calibration(
        machine_id=str(content["machine_id"]),
        backend=str(content["backend"]),
        threads=int(content["threads"]),
        dtype=str(content["dtype"]),
        figures={name: float(value) for name, value in figures.items()},
        versions={str(name): str(version) for name, version in content["versions"].items()},
        created_at=float(content["created_at"]),
        disturbed=disturbed,
    )
