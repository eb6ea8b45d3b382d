"""The backends that ship, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from trainpilot.backends.ane import AneBackend
from trainpilot.backends.base import Backend
from trainpilot.backends.simulated import SimulatedBackend
from trainpilot.backends.torch_device import TorchDeviceBackend
from trainpilot.errors import UnknownNameError

_MAKERS: dict[str, Callable[[], Backend]] = {
    "cpu": lambda: TorchDeviceBackend("cpu"),
    "cuda": lambda: TorchDeviceBackend("cuda"),
    "mps": lambda: TorchDeviceBackend("mps"),
    "xpu": lambda: TorchDeviceBackend("xpu"),
    "ane": AneBackend,
    "simulated": SimulatedBackend,
}


def backend_names() -> tuple[str, ...]:
    """Names of all backends, the simulated one included."""
    return tuple(_MAKERS)


def get_backend(name: str) -> Backend:
    """Return the backend of that name; the same object each time, so that it is probed once per process.

    Raises:
        UnknownNameError: There is no such backend.
    """
    if name not in _MAKERS:
        raise UnknownNameError("backend", name, _MAKERS)
    return _make(name)


def candidate_backends() -> tuple[Backend, ...]:
    """All backends on which a user could train; never the simulated one."""
    backends = (get_backend(name) for name in _MAKERS)
    return tuple(backend for backend in backends if not backend.simulated)


@cache
def _make(name: str) -> Backend:
    return _MAKERS[name]()
