"""Energy meters. Where there is none, the energy is unknown: None, never 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from trainpilot.errors import MeasurementError

_WINDOW = "trainpilot"


class EnergyMeter(ABC):
    """Measures the energy of one window at a time."""

    @abstractmethod
    def begin(self) -> None:
        """Start a window; a window that is still open is dropped."""

    @abstractmethod
    def end(self) -> float | None:
        """Close the window and return its energy in J, or None if it cannot be known."""


class NoMeter(EnergyMeter):
    """Stands where no meter is."""

    def begin(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """The energy is unknown."""


class ReplayMeter(EnergyMeter):
    """Plays recorded readings, one a window.

    Args:
        readings_j: Energy of each window in J, or None where the meter had failed.
    """

    def __init__(self, readings_j: Iterable[float | None]) -> None:
        self._readings = iter(readings_j)

    def begin(self) -> None:
        """Do nothing: the readings are given."""

    def end(self) -> float | None:
        """The next reading.

        Raises:
            MeasurementError: All readings were played.
        """
        try:
            return next(self._readings)
        except StopIteration:
            raise MeasurementError("the recording of the energy meter has no more windows") from None


class ZeusMeter(EnergyMeter):
    """Measures GPU and CPU with zeus (the ``energy`` extra).

    Raises:
        MeasurementError: zeus is not installed, or finds nothing that it can read.
    """

    def __init__(self) -> None:
        try:
            from zeus.monitor import ZeusMonitor
        except ImportError:
            raise MeasurementError("measuring energy needs zeus: pip install 'train-pilot[energy]'") from None
        self._monitor: Any = ZeusMonitor()
        if not (self._monitor.gpu_indices or self._monitor.cpu_indices):
            raise MeasurementError("zeus finds no device here whose energy it can read")
        self._open = False

    def begin(self) -> None:
        """Start a window; the caller has synchronised the device."""
        if self._open:
            self._monitor.end_window(_WINDOW, sync_execution=False, cancel=True)
        self._monitor.begin_window(_WINDOW, sync_execution=False)
        self._open = True

    def end(self) -> float | None:
        """Energy of all devices in J; None where the counters did not move during the window."""
        found = self._monitor.end_window(_WINDOW, sync_execution=False)
        self._open = False
        parts = (found.gpu_energy, found.cpu_energy, found.dram_energy)
        total = sum(sum(part.values()) for part in parts if part)
        # Counters are updated some ten times a second: no change means that the window was too short to tell.
        return total if total > 0 else None
