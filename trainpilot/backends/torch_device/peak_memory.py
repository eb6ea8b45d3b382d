"""Peak memory of a session: by the device's allocator, or by the process's resident set on the CPU."""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from abc import ABC, abstractmethod
from pathlib import Path


class PeakMemory(ABC):
    """Watches the peak since it was made."""

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """Most memory in use at one moment, above what was in use at the start; None where it cannot be known."""


class AllocatorPeak(PeakMemory):
    """Peak of tensors on a device with an allocator that counts (cuda, xpu).

    Args:
        device_type: The device.
    """

    def __init__(self, device_type: str) -> None:
        import torch

        self._memory = getattr(torch, device_type)
        self._memory.reset_peak_memory_stats()
        self._start = int(self._memory.memory_allocated())

    def peak_bytes(self) -> int | None:
        """Peak of all tensors above the start."""
        return max(0, int(self._memory.max_memory_allocated()) - self._start)


class ResidentPeak(PeakMemory):
    """Peak of the resident set of this process, where Linux lets a process reset that mark.

    Threads and libraries that start meanwhile are in it, and memory that the allocator kept from earlier work is
    not; so it is a figure for steps of many megabytes.

    Args:
        process: Folder of the process's files.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._status = process / "status"
        gc.collect()
        _give_back_free_memory()
        try:
            (process / "clear_refs").write_text("5")
        except OSError:  # not Linux, or a sandbox that does not allow it
            self._start = None
        else:
            self._start = self._field("VmRSS")

    def peak_bytes(self) -> int | None:
        """Peak of the resident set above the start."""
        peak = self._field("VmHWM")
        return None if self._start is None or peak is None else max(0, peak - self._start)

    def _field(self, name: str) -> int | None:
        try:
            text = self._status.read_text()
        except OSError:
            return None
        found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
        return int(found.group(1)) * 1024 if found else None


class UnknownPeak(PeakMemory):
    """For devices whose allocator keeps no peak (mps)."""

    def peak_bytes(self) -> int | None:
        """Always None."""
        return None


def watch_peak_memory(device_type: str) -> PeakMemory:
    """Begin to watch the peak of a device."""
    if device_type in ("cuda", "xpu"):
        return AllocatorPeak(device_type)
    return ResidentPeak() if device_type == "cpu" else UnknownPeak()


def _give_back_free_memory() -> None:
    """Return freed memory to the system (glibc only): else a later session seems to need nothing."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
