"""A device that exists in arithmetic only, for tests and documentation."""

from trainpilot.backends.simulated.backend import SimulatedBackend
from trainpilot.backends.simulated.clock import VirtualClock
from trainpilot.backends.simulated.device import SimulatedDevice

__all__ = ["SimulatedBackend", "SimulatedDevice", "VirtualClock"]
