"""The simulated backend: real models, times by arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from trainpilot.backends.base import Backend, DeviceInfo, ExecutionSettings, Usability
from trainpilot.backends.simulated.clock import VirtualClock
from trainpilot.backends.simulated.device import SimulatedDevice
from trainpilot.backends.simulated.session import SimulatedSession
from trainpilot.errors import UsageError
from trainpilot.hardware import Calibration, machine, versions
from trainpilot.workload import Workload


class SimulatedBackend(Backend):
    """Answers at once with the time that a made-up device would take; its clock moves, nothing sleeps.

    The same workload gives the same times on every machine: without a thread count it uses one thread. It is never
    a candidate for training, and its rows carry ``simulated``.

    Args:
        device: The figures of the device.
        noise: Standard deviation of the logarithm of a factor on each step's time; 0: none.
        seed: Seed of that noise.
    """

    name: ClassVar[str] = "simulated"
    simulated: ClassVar[bool] = True

    def __init__(self, device: SimulatedDevice | None = None, *, noise: float = 0.0, seed: int = 0) -> None:
        if noise < 0:
            raise UsageError(f"noise must be at least 0, got {noise}")
        self.device = SimulatedDevice() if device is None else device
        self.noise = noise
        self.seed = seed

    def probe(self, timeout_s: float = 30.0) -> Usability:  # noqa: ARG002  there is no device to wait for
        """Always usable."""
        return Usability(available=True, usable=True)

    def info(self) -> DeviceInfo:
        """Describe the device; it has no memory and no load."""
        return DeviceInfo(
            backend="simulated",
            description=f"simulated device, {self.device.flops_per_s:.3g} FLOP/s a thread",
            memory_total_bytes=None,
            memory_available_bytes=None,
            utilization=None,
        )

    def calibration(
        self,
        settings: ExecutionSettings | None = None,
        *,
        refresh: bool = False,  # noqa: ARG002  constants are never stale
        run: bool = True,  # noqa: ARG002
    ) -> Calibration:
        """The device's own constants."""
        settings = settings or ExecutionSettings()
        threads = settings.threads or 1
        return Calibration(
            machine_id=machine().machine_id,
            backend=self.name,
            threads=threads,
            dtype=settings.dtype,
            figures=self.device.figures(threads, settings.dtype),
            versions=versions(),
            created_at=0.0,
        )

    def prepare(
        self,
        workload: Workload,
        settings: ExecutionSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> SimulatedSession:
        """Build the model and advance the clock by the setup time; see ``Backend.prepare``.

        Raises:
            UsageError: The clock is not a ``VirtualClock``.
        """
        if clock is not None and not isinstance(clock, VirtualClock):
            raise UsageError("the simulated backend needs a clock that it can advance: give a VirtualClock")
        settings = settings or ExecutionSettings(dtype=workload.dtype)
        clock = VirtualClock() if clock is None else clock
        return SimulatedSession(workload, self.device, settings, clock, noise=self.noise, seed=self.seed)
