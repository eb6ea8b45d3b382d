"""The public surface: names, laziness, and the documented modules."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import trainpilot


def test_exported_names_are_all_and_all_exist() -> None:
    assert sorted(trainpilot.__all__) == dir(trainpilot)
    for name in trainpilot.__all__:
        assert getattr(trainpilot, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = trainpilot.nonsense  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", sorted(m.name for m in pkgutil.iter_modules(trainpilot.__path__) if m.ispkg))
def test_exported_names_of_each_package_exist(package: str) -> None:
    module = importlib.import_module(f"trainpilot.{package}")
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None, name


def test_import_loads_no_framework() -> None:
    code = (
        "import sys, trainpilot, hardware_orchestrator\n"
        "assert not {'torch', 'xgboost', 'coremltools', 'pandas', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_documented_modules_give_the_same_objects() -> None:
    import hardware_orchestrator
    import train_orchestrated

    assert hardware_orchestrator.HardwareOrchestrator is trainpilot.HardwareOrchestrator
    assert train_orchestrated.TrainingEnvironment is trainpilot.TrainingEnvironment
