"""The backend of the Apple Neural Engine."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, ClassVar

from trainpilot.backends.base import Backend, DeviceInfo, ExecutionSettings, TrainingSession, Usability
from trainpilot.backends.child import run_in_child
from trainpilot.errors import BackendUnusableError
from trainpilot.hardware import Calibration
from trainpilot.workload import Workload

_DEVICES = "trainpilot.backends.ane.devices:find_neural_engine"
_NO_TRAINER = "the Core ML trainer is not part of this version"


class AneBackend(Backend):
    """Tells whether this machine has a Neural Engine; the trainer for it is not part of this version.

    So it is never usable: visible on a Mac that has one, absent elsewhere. A request for it is refused with the
    reason and never runs on the CPU under its name.

    Args:
        system: Name of the operating system as ``platform.system()`` gives it; default: this one.
        devices: ``package.module:function`` that looks for the device in a child process.
    """

    name: ClassVar[str] = "ane"

    def __init__(self, *, system: str | None = None, devices: str = _DEVICES) -> None:
        self._system = platform.system() if system is None else system
        self._devices = devices
        self._usability: Usability | None = None
        self._found: dict[str, Any] = {}

    def probe(self, timeout_s: float = 30.0) -> Usability:
        """Ask Core ML in a child process, once; elsewhere than on macOS the answer is known."""
        if self._system != "Darwin":
            return Usability(available=False, usable=False, reason="Core ML needs macOS")
        if self._usability is None:
            outcome = run_in_child(self._devices, timeout_s=timeout_s)
            if outcome.status == "ok":
                self._found = dict(outcome.value)
                available = bool(self._found["available"])
                reason = _NO_TRAINER if available else str(self._found["reason"])
                self._usability = Usability(available=available, usable=False, reason=reason)
            else:
                self._usability = Usability(available=False, usable=False, reason=outcome.reason)
        return self._usability

    def info(self) -> DeviceInfo:
        """Describe the device; its memory is that of the machine, and its load cannot be known without root."""
        cores = self._found.get("cores")
        return DeviceInfo(
            backend="ane",
            description="Apple Neural Engine" + (f", {cores} cores" if cores else ""),
            memory_total_bytes=None,
            memory_available_bytes=None,
            utilization=None,
        )

    def calibration(
        self,
        settings: ExecutionSettings | None = None,  # noqa: ARG002  there is nothing to probe at any setting
        *,
        refresh: bool = False,  # noqa: ARG002
        run: bool = True,
    ) -> Calibration | None:
        """There are no figures; asking for a probe is an error with the reason."""
        if run:
            raise BackendUnusableError(f"backend ane cannot be used: {self.probe().reason}")
        return None

    def prepare(
        self,
        workload: Workload,  # noqa: ARG002  no workload can be prepared
        settings: ExecutionSettings | None = None,  # noqa: ARG002
        *,
        clock: Callable[[], float] | None = None,  # noqa: ARG002
    ) -> TrainingSession:
        """Refuse with the reason; see the class."""
        raise BackendUnusableError(f"backend ane cannot be used: {self.probe().reason}")
