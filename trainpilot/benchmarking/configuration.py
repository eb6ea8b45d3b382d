"""One configuration: a workload on a backend with its execution settings."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from trainpilot import zoo
from trainpilot.backends import ExecutionSettings
from trainpilot.workload import Workload
from trainpilot.workload.identity import digest
from trainpilot.workload.reference import is_code_reference

# Versions of these decide the speed of a step; a new version of anything else keeps old rows valid.
SPEED_VERSIONS = ("torch", "mkl", "coremltools")

MeasuredPhase = Literal["train_step", "forward"]


@dataclass(frozen=True)
class Configuration:
    """What is measured.

    Attributes:
        workload: What ``Workload.to_spec`` gives: the workload as plain JSON.
        family: Zoo family, ``operator`` or ``custom``.
        backend: The backend.
        threads: CPU threads.
        memory_format: ``contiguous`` or ``channels_last``.
        phase: ``train_step`` or ``forward``.
    """

    workload: Mapping[str, Any]
    family: str
    backend: str
    threads: int
    memory_format: str = "contiguous"
    phase: MeasuredPhase = "train_step"

    @cached_property
    def live_workload(self) -> Workload:
        """The workload itself."""
        return Workload.from_spec(self.workload)

    @property
    def settings(self) -> ExecutionSettings:
        """How the backend runs it."""
        return ExecutionSettings(threads=self.threads, dtype=self.workload["dtype"], memory_format=self.memory_format)

    @property
    def uses_code(self) -> bool:
        """True if the model is somebody's own code, which may do anything."""
        return is_code_reference(self.workload["model"])

    @cached_property
    def workload_identity(self) -> str:
        """Identity of the training step, found without running anybody's code.

        For code it is a hash of the source file, so that it is known before (and whether or not) the code runs.
        """
        if not self.uses_code:
            return self.live_workload.workload_hash
        plan = ("dataset_size", "epochs", "accumulate", "drop_last", "validation_size", "label")
        step = {name: value for name, value in self.workload.items() if name not in plan}
        return digest([step, _source_digest(self.workload["model"])])

    def key(self, machine_id: str, versions: Mapping[str, str]) -> str:
        """What a resumed sweep compares: equal keys would give equal rows.

        Args:
            machine_id: The machine.
            versions: Library versions by name.
        """
        speed_versions = {name: versions[name] for name in SPEED_VERSIONS if name in versions}
        return digest(
            [
                self.workload_identity,
                self.backend,
                self.threads,
                self.workload["dtype"],
                self.memory_format,
                self.phase,
                machine_id,
                speed_versions,
            ]
        )

    @property
    def title(self) -> str:
        """The configuration in a few words, for progress and listings."""
        workload = self.workload
        defaults = {} if self.uses_code else zoo.get(workload["model"]).resolve_settings({})
        settings = " ".join(f"{k}={v}" for k, v in workload["settings"].items() if defaults.get(k) != v)
        parts = [
            workload["label"] or workload["model"],
            settings,
            f"batch {workload['batch_size']}",
            workload["optimizer"],
            self.backend,
            f"{self.threads} thread{'s' if self.threads != 1 else ''}",
            workload["dtype"] if workload["dtype"] != "float32" else "",
            self.memory_format if self.memory_format != "contiguous" else "",
            self.phase if self.phase != "train_step" else "",
        ]
        return ", ".join(part for part in parts if part)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"workload": dict(self.workload)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Configuration:
        """Read what ``to_dict`` gave."""
        return cls(**content)


@dataclass(frozen=True)
class OperatorTiming:
    """Time of the alike operator calls inside one real training step, dispatch by dispatch.

    Attributes:
        op: Name of the operator as PyTorch dispatches it, e.g. ``aten.addmm``.
        phase: ``forward`` (loss included), ``backward`` or ``optimizer``.
        op_class: Class of operators with similar cost (see ``trainpilot.profiling.OP_CLASSES``), or ``other``.
        shapes: Shape of each tensor argument.
        calls: Calls per step.
        time_s: Time of all these calls in one step, in s.
        agreement: Calibrated sum of all operator times of the step, divided by the measured step time.
        agrees: Whether that ratio is close enough to 1 for the operator times to be labels.
    """

    op: str
    phase: str
    op_class: str
    shapes: list[list[int]]
    calls: int
    time_s: float
    agreement: float
    agrees: bool = field(default=True)


def _source_digest(reference: str) -> str:
    """SHA-256 of the source file of ``file.py:build`` or ``package.module:build``; empty if there is no such file."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        path = Path(place)
    else:
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError):
            return ""
        path = Path(spec.origin) if spec is not None and spec.origin is not None else Path()
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
