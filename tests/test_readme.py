"""Every command block of the README is run, in its order, from the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```(bash|python)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if language == "bash" for line in block.splitlines() if line]
PROGRAMS = [block for language, block in BLOCKS if language == "python"]


@pytest.fixture
def environment(data_dir: Path) -> dict[str, str]:
    """The programs of this virtual environment first, and a data folder of the test's own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "TRAINPILOT_DATA_DIR": str(data_dir), "PYTHONPATH": str(ROOT)}


def run(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_two_first_commands_exist() -> None:
    assert COMMANDS[:2] == ["make quickstart", "make test"]
    for command in COMMANDS[:2]:  # `make test` is what runs this test, so here make only says what it would do
        subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
def test_quickstart_tells_the_whole_story(tmp_path: Path, environment: dict[str, str]) -> None:
    # What `make quickstart` runs once everything is installed.
    assert "$(BIN)/trainpilot quickstart" in (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = run(f"{sys.executable} -m trainpilot quickstart --budget 45s", tmp_path, environment)
    for text in ("1. Calibrate", "2. Measure", "3. Fit", "4. Predict", "5. Decide and train", "6. Record", "Done in"):
        assert text in shown
    accuracy = re.search(r"accuracy\s+([\d.]+)% of the held-out samples", shown)
    assert accuracy is not None
    assert float(accuracy[1]) > 90


@pytest.mark.slow
def test_commands_run_in_their_order(tmp_path: Path, environment: dict[str, str]) -> None:
    for command in COMMANDS[2:]:
        assert command.startswith("trainpilot ")
        # The installed script may be that of another environment, the module is the one under test. A shorter budget
        # measures fewer rows in the same way.
        arguments = command.removeprefix("trainpilot ").replace("--budget 90s", "--budget 40s")
        run(f"{sys.executable} -m trainpilot {arguments}", tmp_path, environment)
    assert (tmp_path / "test_data_setup" / "X_train.npy").is_file()


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_python_blocks_run_as_they_stand(number: int, tmp_path: Path, environment: dict[str, str]) -> None:
    program = tmp_path / "example.py"
    program.write_text(PROGRAMS[number], encoding="utf-8")
    assert run(f"{sys.executable} {program}", tmp_path, environment)


def test_documented_program_runs_from_the_clone(tmp_path: Path, environment: dict[str, str]) -> None:
    run(f"{sys.executable} -m trainpilot sample digits ./test_data_setup", tmp_path, environment)
    program = f"{sys.executable} {ROOT / 'train_orchestrated.py'} --model small_cnn --dataset"
    shown = run(f"{program} ./test_data_setup", tmp_path, environment)
    for text in ("backend", "time", "loss", "accuracy", "predicted", "recorded"):
        assert text in shown
    missing = subprocess.run(
        f"{program} ./missing", shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 1
    assert missing.stdout == ""
    assert len(missing.stderr.splitlines()) == 1
