from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from torch import nn

from trainpilot.backends import ane, candidate_backends
from trainpilot.backends.ane import AneBackend
from trainpilot.backends.ane.devices import find_neural_engine
from trainpilot.backends.conformance import tiny_workload
from trainpilot.errors import BackendUnusableError

DOUBLES = "tests.backends.doubles"


def test_d02_on_linux_it_is_not_available_and_the_others_are_still_offered() -> None:
    usability = AneBackend(system="Linux").probe()
    assert (usability.available, usability.usable) == (False, False)
    assert usability.reason == "Core ML needs macOS"
    assert any(backend.probe().usable for backend in candidate_backends())


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_d02_a_request_is_refused_and_never_runs_on_the_cpu(system: str) -> None:
    backend = AneBackend(system=system, devices=f"{DOUBLES}:neural_engine")
    workload = tiny_workload(lambda: nn.LSTM(8, 16))
    with pytest.raises(BackendUnusableError, match="backend ane cannot be used: ") as caught:
        backend.prepare(workload)
    assert backend.probe().reason in str(caught.value)


def test_on_a_mac_with_an_engine_it_is_visible_but_there_is_no_trainer() -> None:
    backend = AneBackend(system="Darwin", devices=f"{DOUBLES}:neural_engine")
    usability = backend.probe()
    assert (usability.available, usability.usable) == (True, False)
    assert "not part of this version" in usability.reason
    assert backend.info().description == "Apple Neural Engine, 16 cores"


def test_on_a_mac_without_an_engine() -> None:
    usability = AneBackend(system="Darwin", devices=f"{DOUBLES}:no_neural_engine").probe()
    assert (usability.available, usability.usable) == (False, False)
    assert "no Neural Engine" in usability.reason


def test_d02_an_abort_of_core_ml_costs_the_child_only() -> None:
    usability = AneBackend(system="Darwin", devices=f"{DOUBLES}:aborts").probe()
    assert (usability.available, usability.usable) == (False, False)
    assert "SIGABRT" in usability.reason


def test_the_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = AneBackend(system="Darwin", devices=f"{DOUBLES}:neural_engine")
    first = backend.probe()

    def again(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("probed twice")

    monkeypatch.setattr(ane.backend, "run_in_child", again)
    assert backend.probe() is first


class _Engine:
    total_core_count = 16


def _core_ml(devices: list[Any]) -> ModuleType:
    module = ModuleType("coremltools.models.compute_device")

    class MLComputeDevice:
        @staticmethod
        def get_all_compute_devices() -> list[Any]:
            return devices

    module.MLComputeDevice = MLComputeDevice  # type: ignore[attr-defined]
    module.MLNeuralEngineComputeDevice = _Engine  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(("devices", "available"), [([object(), _Engine()], True), ([object()], False), ([], False)])
def test_the_engine_among_core_mls_devices(
    monkeypatch: pytest.MonkeyPatch, devices: list[Any], available: bool
) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", ModuleType("coremltools"))
    monkeypatch.setitem(sys.modules, "coremltools.models", ModuleType("coremltools.models"))
    monkeypatch.setitem(sys.modules, "coremltools.models.compute_device", _core_ml(devices))
    found = find_neural_engine()
    assert found["available"] is available
    assert found.get("cores") == (16 if available else None)


def test_without_coremltools_the_answer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    found = find_neural_engine()
    assert found == {"available": False, "reason": "coremltools is not installed: pip install coremltools"}
