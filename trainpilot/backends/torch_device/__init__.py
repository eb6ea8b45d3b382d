"""PyTorch devices: cpu, cuda, mps and xpu."""

from trainpilot.backends.torch_device.backend import TorchDeviceBackend
from trainpilot.backends.torch_device.session import TorchSession

__all__ = ["TorchDeviceBackend", "TorchSession"]
