"""Stand-ins for devices and their drivers; the functions run in the probe's child process."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


def works(*arguments: str) -> dict[str, Any]:
    sys.stdout.write("a library that talks on standard output\n")
    os.write(1, b"and one that writes to the descriptor\n")
    return {"available": True, "reason": "", "name": "Example device", "memory_total_bytes": 1 << 30}


def absent(*arguments: str) -> dict[str, Any]:
    return {"available": False, "reason": "no device is visible"}


def no_kernel_image(*arguments: str) -> dict[str, Any]:
    raise RuntimeError("no kernel image is available for execution on the device\nCompile with TORCH_USE_CUDA_DSA")


def hangs(*arguments: str) -> dict[str, Any]:
    time.sleep(3600)
    raise AssertionError("unreachable")


def hangs_with_a_child_of_its_own(path: str) -> dict[str, Any]:
    pid = os.fork()
    if pid == 0:
        time.sleep(3600)
    Path(path).write_text(str(pid))
    time.sleep(3600)
    raise AssertionError("unreachable")


def aborts(*arguments: str) -> dict[str, Any]:
    os.write(2, b"driver: fatal assertion\n")
    os.abort()


def exits(*arguments: str) -> dict[str, Any]:
    os._exit(3)


def neural_engine() -> dict[str, Any]:
    return {"available": True, "reason": "", "cores": 16}


def no_neural_engine() -> dict[str, Any]:
    return {"available": False, "reason": "this Mac has no Neural Engine that Core ML can use"}
