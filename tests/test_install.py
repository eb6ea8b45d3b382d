"""The wheel: what it holds, and that it works in a clean environment far from the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = """
from hardware_orchestrator import HardwareOrchestrator
from train_orchestrated import TrainingEnvironment
import numpy as np
import time
agent = HardwareOrchestrator()
X_train = np.random.rand(100, 28, 28)
y_train = np.random.randint(0, 10, 100)
config = {"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}
environment = TrainingEnvironment(X_train, y_train, config)
profile = agent.profile_workload(config, 100)
hw_state = {"ane_available": False, "cpu_utilization": 0.3, "timestamp": time.time()}
agent.observe(hw_state, profile)
backend = agent.think()
result = agent.act(backend, environment)
print(f"Training result: {result['message']}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], check=True, capture_output=True
    )
    (built,) = folder.glob("train_pilot-*.whl")
    return built


@pytest.mark.install
def test_wheel_holds_what_an_installed_user_needs(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"hardware_orchestrator.py", "train_orchestrated.py", "trainpilot/py.typed"} <= names
    in_package = {str(path.relative_to(ROOT)) for path in (ROOT / "trainpilot").rglob("*.py")}
    assert in_package <= names
    sweeps = {f"trainpilot/benchmarking/sweeps/{path.name}" for path in (ROOT / "benchmarks" / "sweeps").glob("*.toml")}
    assert sweeps
    assert sweeps <= names
    models = {
        f"trainpilot/predictors/models/{path.relative_to(ROOT / 'models')}" for path in (ROOT / "models").glob("*/*")
    }
    assert "trainpilot/predictors/models/cpu/card.json" in models
    assert models <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "datasets/"))]


@pytest.mark.install
@pytest.mark.slow
def test_installed_wheel_predicts_and_runs_the_documented_example(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["TRAINPILOT_DATA_DIR"] = str(tmp_path / "data")
    clean.pop("TRAINPILOT_REFERENCE_DIR", None)

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [str(a) for a in arguments], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    document = json.loads(
        run(environment / "bin" / "trainpilot", "predict", "--model", "small_cnn", "--backend", "cpu", "--json")
    )
    (prediction,) = document["predictions"]
    assert prediction["step_time_s"]["value"] > 0
    assert prediction["source"] == "learned"
    assert any("reference predictor" in note for note in prediction["notes"])
    assert document["selected"] == "cpu"
    assert "Training result: " in run(python, "-c", EXAMPLE)
    assert "quick" in run(environment / "bin" / "trainpilot", "benchmark", "--quick", "--dry-run", "--json")
