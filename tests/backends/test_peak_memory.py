from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.backends.conformance import tiny_workload
from trainpilot.backends.torch_device.peak_memory import AllocatorPeak, ResidentPeak, watch_peak_memory

MIB = 1 << 20


def _status(folder: Path, resident_kib: int, peak_kib: int) -> None:
    (folder / "status").write_text(f"Name:\tpython\nVmHWM:\t{peak_kib} kB\nVmRSS:\t{resident_kib} kB\nThreads:\t1\n")


def test_resident_peak_above_the_start(tmp_path: Path) -> None:
    _status(tmp_path, 1000, 5000)
    peak = ResidentPeak(tmp_path)
    assert (tmp_path / "clear_refs").read_text() == "5"  # resets the mark
    _status(tmp_path, 1200, 1600)
    assert peak.peak_bytes() == 600 * 1024


def test_where_the_mark_cannot_be_reset_the_peak_is_unknown(tmp_path: Path) -> None:
    _status(tmp_path, 1000, 5000)
    (tmp_path / "clear_refs").mkdir()  # cannot be written
    assert ResidentPeak(tmp_path).peak_bytes() is None
    assert ResidentPeak(tmp_path / "missing").peak_bytes() is None


def test_allocator_peak_above_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[bool] = []
    memory = SimpleNamespace(
        reset_peak_memory_stats=lambda: reset.append(True),
        memory_allocated=lambda: 100,
        max_memory_allocated=lambda: 350,
    )
    monkeypatch.setattr(torch, "cuda", memory)
    peak = AllocatorPeak("cuda")
    assert reset == [True]
    assert peak.peak_bytes() == 250


def test_mps_keeps_no_peak() -> None:
    assert watch_peak_memory("mps").peak_bytes() is None


def test_weights_gradients_and_optimizer_state_are_in_the_peak() -> None:
    width = 2048  # a weight of 16 MiB; with its gradient and Adam's two moments 64 MiB
    workload = tiny_workload(
        lambda: nn.Linear(width, width, bias=False),
        example_inputs=torch.ones(1, width),
        targets=torch.ones(1, width),
        batch_size=1,
    )
    with get_backend("cpu").prepare(workload, ExecutionSettings(threads=1)) as session:
        session.step()
        session.step()
        peak = session.peak_memory_bytes()
    if peak is None:
        pytest.skip("this system does not tell the peak")
    assert 60 * MIB < peak < 200 * MIB
