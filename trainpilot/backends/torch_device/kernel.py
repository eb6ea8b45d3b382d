"""The work of a probe: find the device, run a real kernel on it and wait for the result."""

from __future__ import annotations

import math
from typing import Any


def run_kernel(device_type: str) -> dict[str, Any]:
    """Multiply two matrices on the device and check the product.

    Returns:
        ``{"available": False, "reason": ...}``, or ``available`` with the device's name and memory in bytes.

    Raises:
        RuntimeError: The device is visible, but the kernel fails or gives a wrong result.
    """
    import torch

    if device_type == "mps":
        available = torch.backends.mps.is_available()
    else:
        available = getattr(torch, device_type).is_available()
    if not available:
        return {"available": False, "reason": f"no {device_type} device is visible"}
    ones = torch.ones(64, 64, device=device_type)
    product = ones @ ones
    torch.accelerator.synchronize()
    total = product.sum().item()
    if not math.isclose(total, 64.0**3):
        raise RuntimeError(f"a matrix product on {device_type} is wrong: its sum is {total}, not {64.0**3}")
    name, memory = device_type, None
    if device_type in ("cuda", "xpu"):
        properties = getattr(torch, device_type).get_device_properties(0)
        name, memory = str(properties.name), int(properties.total_memory)
    elif device_type == "mps":
        memory = int(torch.mps.recommended_max_memory())
    return {"available": True, "reason": "", "name": name, "memory_total_bytes": memory}
