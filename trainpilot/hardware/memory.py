"""Memory of the machine or of the control group, whichever is less."""

from __future__ import annotations

from pathlib import Path

import psutil

from trainpilot.hardware.cgroups import memory_limits


def memory_available_bytes(root: Path = Path("/")) -> int:
    """What this process could still allocate without swapping or being killed, in bytes.

    File cache that the kernel gives up first counts as available, in the machine and in the control group alike.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder in tests.
    """
    host = int(psutil.virtual_memory().available)
    return min([host, *(limit.available_bytes for limit in memory_limits(root))])


def memory_total_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine or the control-group limit, whichever is less, in bytes.

    Args:
        root: Where ``proc`` and ``sys`` are; another folder in tests.
    """
    host = int(psutil.virtual_memory().total)
    return min([host, *(limit.limit_bytes for limit in memory_limits(root))])
