"""Asks Core ML for the Neural Engine; runs in a child process, since loading Core ML takes seconds and may abort.

Written from the documentation of coremltools and tested with doubles; never run on a Mac.
"""

from __future__ import annotations

from typing import Any


def find_neural_engine() -> dict[str, Any]:
    """Look for a Neural Engine among Core ML's compute devices.

    Returns:
        ``{"available": bool, "reason": str}`` and, where there is one, ``"cores"``.
    """
    try:
        from coremltools.models.compute_device import MLComputeDevice, MLNeuralEngineComputeDevice
    except ImportError:
        return {"available": False, "reason": "coremltools is not installed: pip install coremltools"}
    for device in MLComputeDevice.get_all_compute_devices():
        if isinstance(device, MLNeuralEngineComputeDevice):
            return {"available": True, "reason": "", "cores": int(device.total_core_count)}
    return {"available": False, "reason": "this Mac has no Neural Engine that Core ML can use"}
