"""Sweeps and a machine for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainpilot.benchmarking import Configuration, Measurement, OperatorTiming, Site, Sweep, load_sweep
from trainpilot.hardware import Machine
from trainpilot.workload import Workload

FAKE = "tests.benchmarking.fake_executor"


def site(**changes: Any) -> Site:
    machine = Machine("m" * 32, "test processor", 2, 2, 8 << 30, "Linux", "x86_64", (), ())
    given: dict[str, Any] = {
        "machine": machine,
        "versions": {"torch": "2.13.0", "python": "3.11"},
        "cores": 2,
        "calibration": lambda backend, threads, dtype: {},
    }
    return Site(**given | changes)


def sweep_of(
    folder: Path, batch_sizes: Sequence[int], *, rounds: int = 1, extra: str = "", name: str = "trial"
) -> Sweep:
    """A sweep of one small model over batch sizes."""
    path = folder / f"{name}.toml"
    path.write_text(
        f"""
rounds = {rounds}
timeout_s = 5
{extra}
[[space]]
model = "mlp"
settings.width = 8
batch_size = {list(batch_sizes)}
"""
    )
    return load_sweep(path)


def configuration(batch_size: int = 4, **changes: Any) -> Configuration:
    workload = Workload(model="mlp", settings={"width": 8}, batch_size=batch_size)
    return Configuration(workload=workload.to_spec(), family="mlp", backend="cpu", threads=1, **changes)


class Rows:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.operators: list[Sequence[OperatorTiming]] = []

    def __call__(self, row: Measurement, operators: Sequence[OperatorTiming]) -> None:
        self.rows.append(row)
        self.operators.append(operators)

    @property
    def keys(self) -> set[tuple[str, int]]:
        return {(row.config_key, row.repetition) for row in self.rows}
