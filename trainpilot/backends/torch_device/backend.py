"""The backend of one PyTorch device type."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trainpilot.backends.base import Backend, DeviceInfo, ExecutionSettings, Usability
from trainpilot.backends.child import run_in_child
from trainpilot.backends.torch_device.session import TorchSession
from trainpilot.errors import BackendUnusableError, UnsupportedError, UsageError
from trainpilot.hardware import (
    Calibration,
    cached_calibration,
    calibrate,
    machine,
    sample_load,
    usable_cores,
)
from trainpilot.settings import load_settings
from trainpilot.workload import Workload

logger = logging.getLogger(__name__)

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu")
_KERNEL = "trainpilot.backends.torch_device.kernel:run_kernel"


class TorchDeviceBackend(Backend):
    """Trains with PyTorch on one device.

    Args:
        device_type: ``cpu``, ``cuda``, ``mps`` or ``xpu``.
        kernel: ``package.module:function`` that the probe runs in a child process instead of the real kernel; it
            gets the device type and answers as ``run_kernel`` does. With it the build of PyTorch is not asked first.
    """

    def __init__(self, device_type: str, *, kernel: str | None = None) -> None:
        if device_type not in DEVICE_TYPES:
            raise UsageError(f"device type {device_type!r}: valid are {', '.join(DEVICE_TYPES)}")
        self.name = device_type  # type: ignore[misc]  # one class for several names
        self._kernel = kernel
        self._usability: Usability | None = None
        self._probe_limit_s: float | None = None  # of a probe that ran out of time
        self._device: dict[str, Any] = {}

    def probe(self, timeout_s: float = 30.0) -> Usability:
        """Find out whether the device runs a kernel; asked once per process, or again with a longer time limit.

        The CPU runs this program, so its kernel runs in this process.
        """
        if self._usability is None or (self._probe_limit_s is not None and timeout_s > self._probe_limit_s):
            self._usability = self._probe(timeout_s)
            if self._usability.available and not self._usability.usable:
                logger.warning("backend %s is visible but not usable: %s", self.name, self._usability.reason)
        return self._usability

    def info(self) -> DeviceInfo:
        """Describe the device. Of an accelerator only what the probe has found is known."""
        if self.name == "cpu":
            here = machine()
            load = sample_load(0.1)
            return DeviceInfo(
                backend="cpu",
                description=f"{here.cpu_model}, {here.cores_usable} usable of {here.cores_physical} cores",
                memory_total_bytes=here.memory_total_bytes,
                memory_available_bytes=load.memory_available_bytes,
                utilization=load.cpu_utilization,
            )
        return DeviceInfo(
            backend=self.name,
            description=str(self._device.get("name", self.name)),
            memory_total_bytes=self._device.get("memory_total_bytes"),
            memory_available_bytes=self._free_memory(),
            utilization=None,
        )

    def calibration(
        self, settings: ExecutionSettings | None = None, *, refresh: bool = False, run: bool = True
    ) -> Calibration | None:
        """Return the calibration figures; see ``Backend.calibration``."""
        settings = settings or ExecutionSettings()
        threads = self._threads(settings)
        if not run:
            return cached_calibration(self.name, threads, settings.dtype)
        self._require_usable()
        return calibrate(self.name, self.name, threads, settings.dtype, refresh=refresh)

    def prepare(
        self,
        workload: Workload,
        settings: ExecutionSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,  # noqa: ARG002  only a simulated backend has one
    ) -> TorchSession:
        """Build the model on the device; see ``Backend.prepare``."""
        settings = settings or ExecutionSettings(dtype=workload.dtype)
        threads = self._threads(settings)
        self._require_usable()
        return TorchSession(workload, self.name, dataclasses.replace(settings, threads=threads))

    def _threads(self, settings: ExecutionSettings) -> int:
        granted = machine().cores_usable
        if settings.threads is not None and settings.threads > granted:
            raise UnsupportedError(
                f"{settings.threads} threads were asked, but this process may use {granted} cores: "
                f"give at most {granted} threads"
            )
        return usable_cores() if settings.threads is None else settings.threads

    def _require_usable(self) -> None:
        usability = self._usability or self.probe(load_settings().probe_timeout_s)
        if not usability.usable:
            raise BackendUnusableError(f"backend {self.name} cannot be used: {usability.reason}")

    def _probe(self, timeout_s: float) -> Usability:
        self._probe_limit_s = None
        if self._kernel is None:
            missing = missing_support(self.name)
            if missing is not None:
                return Usability(available=False, usable=False, reason=missing)
            if self.name == "cpu":
                return _probe_cpu()
        outcome = run_in_child(self._kernel or _KERNEL, self.name, timeout_s=timeout_s)
        if outcome.status == "ok":
            self._device = dict(outcome.value)
            found = bool(outcome.value["available"])
            return Usability(available=found, usable=found, reason=str(outcome.value["reason"]))
        if outcome.status == "timeout":
            self._probe_limit_s = timeout_s
        return Usability(available=True, usable=False, reason=outcome.reason)

    def _free_memory(self) -> int | None:
        """Free memory of the device, if asking does not start the device first."""
        torch = sys.modules.get("torch")
        if self.name == "cuda" and torch is not None and torch.cuda.is_initialized():
            return int(torch.cuda.mem_get_info()[0])
        return None


def missing_support(device_type: str) -> str | None:
    """Why this installation cannot have the device at all, or None; found without importing torch."""
    version = _torch_version()
    if version is None:
        return "PyTorch is not installed"
    if device_type == "mps" and sys.platform != "darwin":
        return "MPS needs macOS"
    if device_type == "cuda" and not (getattr(version, "cuda", None) or getattr(version, "hip", None)):
        return f"this build of PyTorch ({version.__version__}) has no CUDA"
    if device_type == "xpu" and not getattr(version, "xpu", None):
        return f"this build of PyTorch ({version.__version__}) has no XPU support"
    return None


def _torch_version() -> ModuleType | None:
    """The module ``torch.version``, loaded alone: it holds constants only, and torch itself takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    alone = importlib.util.spec_from_file_location("_torch_version", Path(spec.origin).with_name("version.py"))
    assert alone is not None
    assert alone.loader is not None
    module = importlib.util.module_from_spec(alone)
    alone.loader.exec_module(module)
    return module


def _probe_cpu() -> Usability:
    import torch

    with torch.no_grad():
        total = torch.ones(8, 8).mm(torch.ones(8, 8)).sum().item()
    if total != 8.0**3:
        return Usability(available=True, usable=False, reason=f"a matrix product is wrong: its sum is {total}")
    return Usability(available=True, usable=True)
