"""What a backend is: something that can be probed, described, and that runs training steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from trainpilot.errors import UsageError
from trainpilot.workload import DTYPES, Workload

if TYPE_CHECKING:
    from torch import nn

    from trainpilot.hardware import Calibration

MEMORY_FORMATS = ("contiguous", "channels_last")


@dataclass(frozen=True)
class ExecutionSettings:
    """How a backend runs a workload.

    Attributes:
        threads: CPU threads, or None for all usable ones.
        dtype: ``float32``, or ``bfloat16`` / ``float16`` by autocast.
        memory_format: ``contiguous`` or ``channels_last``.

    Raises:
        UsageError: A value is not one of the valid ones.
    """

    threads: int | None = None
    dtype: str = "float32"
    memory_format: str = "contiguous"

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"threads must be at least 1, got {self.threads}")
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: valid are {', '.join(DTYPES)}")
        if self.memory_format not in MEMORY_FORMATS:
            raise UsageError(f"memory format {self.memory_format!r}: valid are {', '.join(MEMORY_FORMATS)}")


@dataclass(frozen=True)
class Usability:
    """Whether a backend can be used here.

    Attributes:
        available: The device or framework is visible.
        usable: A real kernel ran on it within the time limit.
        reason: Why it is not usable, in words; empty if it is.
    """

    available: bool
    usable: bool
    reason: str = ""


@dataclass(frozen=True)
class DeviceInfo:
    """A backend as ``trainpilot devices`` shows it.

    Attributes:
        backend: Name of the backend.
        description: The device, in words.
        memory_total_bytes: Memory of the device, or None if unknown.
        memory_available_bytes: What could still be allocated, or None if unknown.
        utilization: Busy share, 0 to 1, or None if it cannot be known.
    """

    backend: str
    description: str
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    utilization: float | None


class TrainingSession(ABC):
    """One model on one backend, ready to run steps.

    Used by the benchmark and by training alike, so that what is measured is what runs. A session owns a copy of
    the model; the user's object is never touched. As a context manager it restores every global setting that it
    changed (threads, deterministic flags, default device).
    """

    model: nn.Module

    @abstractmethod
    def step(self, inputs: Any = None, targets: Any = None) -> Any:
        """Run one training step (zero gradients, forward, loss, backward, optimizer) and return the loss.

        The loss is a detached scalar tensor on the device, not synchronised. Without arguments the step runs on
        the workload's example batch, which stays on the device.
        """

    @abstractmethod
    def forward(self, inputs: Any = None) -> Any:
        """Run one forward pass in evaluation mode without gradients and return the outputs on the CPU."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work issued so far is done."""

    @abstractmethod
    def peak_memory_bytes(self) -> int | None:
        """Peak memory that the session's steps added, in bytes, or None where it cannot be known."""

    @abstractmethod
    def placement(self) -> str:
        """Where the work really ran, e.g. ``cpu`` or ``cuda:0``."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Weights and buffers on the CPU."""

    @abstractmethod
    def close(self) -> None:
        """Free the device and restore global settings; may be called twice."""

    def __enter__(self) -> TrainingSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Backend(ABC):
    """A device or framework that trains models.

    Subclasses pass the shipped conformance suite (``trainpilot.backends.conformance``).
    """

    name: ClassVar[str]
    simulated: ClassVar[bool] = False

    @abstractmethod
    def probe(self, timeout_s: float = 30.0) -> Usability:
        """Find out, in a child process with a time limit, whether the backend runs a real kernel here."""

    @abstractmethod
    def info(self) -> DeviceInfo:
        """Describe the device; cheap, and never raises for a missing one."""

    @abstractmethod
    def calibration(
        self, settings: ExecutionSettings | None = None, *, refresh: bool = False, run: bool = True
    ) -> Calibration | None:
        """Return the calibration figures of the backend at these settings.

        Args:
            settings: Execution settings; default: float32 on all usable threads.
            refresh: Probe again even if cached figures are valid.
            run: Probe now (a few seconds) where nothing is cached; if False, return None there.

        Raises:
            BackendUnusableError: The device cannot be used.
        """

    @abstractmethod
    def prepare(
        self,
        workload: Workload,
        settings: ExecutionSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> TrainingSession:
        """Build the model on the device and make it ready for steps.

        Args:
            workload: What to train.
            settings: Execution settings; default: the workload's dtype and all usable threads.
            clock: Clock in s that a simulated backend advances; others ignore it.

        Raises:
            BackendUnusableError: The device cannot be used.
            UnsupportedError: The backend lacks an operator, dtype or setting of the workload.
            ModelError: The model cannot be built or has nothing to train.
        """
