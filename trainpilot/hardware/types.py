"""What is known about a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Identity of a machine.

    Attributes:
        machine_id: Hash of what decides speed; equal on identical machines, never of host name or serial number.
        cpu_model: Name of the processor.
        cores_physical: Physical cores of the host.
        cores_usable: Cores that this process may use (affinity and cgroup quota), at least 1.
        memory_total_bytes: Memory of the machine or the cgroup limit, whichever is less.
        system: ``Linux``, ``Darwin`` or ``Windows``.
        architecture: e.g. ``x86_64``.
        instruction_sets: Vector instruction sets that decide the speed of a dtype, e.g. ``avx512_bf16``.
        accelerators: Names of accelerators that are visible, e.g. ``cuda:NVIDIA H200``.
    """

    machine_id: str
    cpu_model: str
    cores_physical: int
    cores_usable: int
    memory_total_bytes: int
    system: str
    architecture: str
    instruction_sets: tuple[str, ...]
    accelerators: tuple[str, ...]


@dataclass(frozen=True)
class Load:
    """How busy the machine is.

    Attributes:
        cpu_utilization: Busy share of the usable cores over the sampled interval, 0 to 1.
        load_average_1min: As the operating system tells, or None where it does not.
        memory_available_bytes: What this process could still allocate (cgroup-aware).
        interval_s: Length of the sampled interval in s.
    """

    cpu_utilization: float
    load_average_1min: float | None
    memory_available_bytes: int
    interval_s: float


@dataclass(frozen=True)
class Calibration:
    """Figures of one backend on one machine at one setting, probed in a few seconds.

    Attributes:
        machine_id: The machine.
        backend: The backend.
        threads: CPU threads in use.
        dtype: Compute type.
        figures: By name: ``matmul_flops_per_s``, ``conv_flops_per_s``, ``memory_bytes_per_s`` (read plus written),
            ``dispatch_s`` (cost of one tiny operator), ``step_overhead_s`` (cost of one tiny training step).
        versions: Versions of the libraries that decide speed.
        created_at: Seconds since the epoch.
        disturbed: Something else used the machine during every attempt, so the figures may be far too slow.
    """

    machine_id: str
    backend: str
    threads: int
    dtype: str
    figures: Mapping[str, float]
    versions: Mapping[str, str]
    created_at: float
    disturbed: bool = False
