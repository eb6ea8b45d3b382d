"""The machine: fingerprint, usable cores and memory, load, versions, and calibration probes."""

from trainpilot.hardware.calibration import cached_calibration, calibrate
from trainpilot.hardware.cores import check_threads, usable_cores
from trainpilot.hardware.fingerprint import machine
from trainpilot.hardware.load import sample_load
from trainpilot.hardware.memory import memory_available_bytes
from trainpilot.hardware.types import Calibration, Load, Machine
from trainpilot.hardware.versions import versions

__all__ = [
    "Calibration",
    "Load",
    "Machine",
    "cached_calibration",
    "calibrate",
    "check_threads",
    "machine",
    "memory_available_bytes",
    "sample_load",
    "usable_cores",
    "versions",
]
