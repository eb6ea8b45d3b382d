"""The program as a whole: exit codes, one line per error, what is imported when."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainpilot.cli import main

COMMANDS = (
    "quickstart",
    "devices",
    "calibrate",
    "profile",
    "benchmark",
    "fit",
    "predict",
    "select",
    "train",
    "evaluate",
    "sample",
    "data",
    "predictor",
)


def run(*arguments: str, prelude: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own that reports, as its last line on stderr, what it imported."""
    code = (
        f"import sys\n{prelude}\nfrom trainpilot.cli import main\ncode = main({list(arguments)!r})\n"
        "heavy = sorted({'torch', 'xgboost', 'coremltools'} & set(sys.modules))\n"
        "print('imported:', *heavy, file=sys.stderr)\nsys.exit(code)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_no_framework(command: str) -> None:
    done = run(*([command] if command else []), "--help")
    assert done.returncode == 0
    assert "Usage: trainpilot" in done.stdout
    assert done.stderr.splitlines() == ["imported:"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["profile"], 2, "no model given"),
        (["profile", "small_cn"], 2, "unknown model 'small_cn': did you mean small_cnn"),
        (["profile", "small_cnn", "--set", "layrs=3"], 2, "unknown setting 'layrs'"),
        (["profile", "small_cnn", "--set", "layers"], 2, "write NAME=VALUE"),
        (["profile", "small_cnn", "--batch-size", "0"], 2, "batch_size must be a whole number of at least 1"),
        (["profile", "small_cnn", "--batch-size", "many"], 2, "'--batch-size'"),
        (["profile", "nope.py:build"], 1, "there is no file nope.py"),
        (["profile", "nope.py"], 2, "write path/file.py:build"),
        (["profile", "small_cnn", "--optimizer", "AdamW"], 2, "did you mean adamw"),
        (["profile", "small_cnn", "--optimizer", "adamm"], 2, "unknown optimizer 'adamm': did you mean adam"),
        (["profile", "small_cnn", "--input", "3x8x8"], 2, "small_cnn has its own input"),
        (["predict", "--model", "small_cnn", "--backend", "cdua"], 2, "unknown backend 'cdua': did you mean cuda"),
        (["predict", "--model", "small_cnn", "--threads", "9999"], 2, "9999"),
        (["predict", "--model", "small_cnn", "--dtype", "int8"], 2, "dtype 'int8'"),
        (["benchmark", "--sweep", "quik"], 2, "unknown sweep 'quik': did you mean quick"),
        (["benchmark", "--quick", "--sweep", "quick"], 2, "not both"),
        (["benchmark", "--quick", "--budget", "soon"], 2, "write a number above 0 with s, m or h"),
        (["benchmark", "--quick", "--shard", "3/2"], 2, "shard '3/2'"),
        (["fit", "--backend", "gpu"], 2, "unknown backend 'gpu'"),
        (["train", "--model", "small_cnn"], 2, "train needs --model and --dataset"),
        (["train", "--model", "small_cn", "--dataset", "."], 2, "unknown model"),
        (["train", "--model", "small_cnn", "--dataset", "missing_folder"], 1, "missing_folder"),
        (["evaluate", "--dataset", "missing.parquet"], 1, "there is no dataset missing.parquet"),
        (["sample", "digitz", "."], 2, "unknown sample 'digitz': did you mean digits"),
        (["data", "verify", "missing.parquet"], 1, "missing.parquet"),
        (["predictor", "show", "--backend", "ane"], 1, "backend ane has no predictor in use"),
        (["predictor", "rollback"], 1, "cpu"),
        (["predictor", "export", "somewhere"], 1, "backend cpu has no predictor in use"),
        (["predictor", "import", "nowhere"], 1, "nowhere is not a predictor: no such folder"),
        (["fit", "--out", "somewhere"], 2, "--dataset and --out belong together"),
        (["fit", "--dataset", "missing.parquet", "--out", "somewhere"], 1, "there is no dataset missing.parquet"),
        (["data", "noise", "missing.parquet"], 1, "there is no dataset missing.parquet"),
    ],
)
def test_bad_input_is_one_line_and_imports_no_framework(arguments: list[str], code: int, message: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    *lines, imported = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("trainpilot: ")
    assert message in lines[0]
    assert imported == "imported:"


def test_a_predictor_of_another_schema_is_an_error(data_dir: Path) -> None:
    home = data_dir / "predictors" / "cpu"
    (home / "0001").mkdir(parents=True)
    (home / "active").write_text("1\n")
    (home / "0001" / "card.json").write_text('{"kind": "trainpilot-predictor", "schema": 99}')
    for command in ("predict", "select"):
        done = run(command, "--model", "mlp")
        assert done.returncode == 1
        assert done.stdout == ""
        assert "has schema 99, this version reads" in done.stderr


def test_wrong_environment_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINPILOT_LEVEL", "high")
    done = run("data", "path")
    assert done.returncode == 2
    assert "TRAINPILOT_LEVEL in the environment" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.exit(0)",
        "import sys\ndef build(): sys.exit(0)",
        "import sys\nfrom torch import nn\nclass M(nn.ReLU):\n def forward(s, x): sys.exit(0)\nbuild = lambda: M()",
    ],
)
def test_a_models_sys_exit_does_not_end_the_program_as_if_done(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.py").write_text(text)
    done = run("profile", f"{tmp_path / 'own.py'}:build", "--input", "8")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "exit" in done.stderr.lower()


def test_what_a_model_prints_stays_out_of_the_results(tmp_path: Path) -> None:
    text = "from torch import nn\nprint('at import')\ndef build():\n print('built')\n return nn.Linear(8, 4)"
    (tmp_path / "own.py").write_text(text)
    done = run("profile", f"{tmp_path / 'own.py'}:build", "--input", "8", "--json")
    assert json.loads(done.stdout)["params"] == 36
    assert "at import" in done.stderr
    assert "built" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["data"], ["predictor"]])
def test_without_a_command_the_help_is_shown(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: trainpilot")
    assert len(done.stderr.splitlines()) > 5


def test_traceback_only_with_debug() -> None:
    assert "Traceback" not in run("profile", "small_cn").stderr
    done = run("profile", "small_cn", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_unexpected_errors_are_one_line_too() -> None:
    broken = "import trainpilot.store as s\ns.list_sweeps = lambda store: 1 / 0"
    done = run("data", "list", prelude=broken)
    assert done.returncode == 1
    assert "trainpilot: unexpected ZeroDivisionError: division by zero (--debug shows where)" in done.stderr
    assert "Traceback" not in done.stderr


def test_interruption_is_130() -> None:
    broken = "import trainpilot.store as s\ndef stop(store): raise KeyboardInterrupt\ns.list_sweeps = stop"
    assert run("data", "list", prelude=broken).returncode == 130


@pytest.mark.parametrize("module", ["trainpilot", "trainpilot.cli"])
def test_modules_are_the_same_program(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


def test_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m trainpilot profile small_cnn --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{"
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_sample_and_data_commands(tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "digits", str(tmp_path / "digits"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["sample_shape"], written["classes"]) == ([8, 8], 10)
    assert written["train_size"] + written["validation_size"] == 1797
    assert main(["data", "path", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data_dir"] == str(data_dir)
    assert main(["data", "list"]) == 0
    assert "the dataset is empty" in capsys.readouterr().out
    assert main(["data", "noise"]) == 1
    assert "run trainpilot benchmark --sweep noise" in capsys.readouterr().err
    assert main(["predictor", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictors"] == []


def test_profile_prints_json_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "mlp", "--set", "width=8", "--set", "layers=2", "--set", "features=4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 4*8+8 and 8*10+10 parameters; 2*32*(4*8 + 8*10) FLOPs; the input needs no gradient
    assert found["params"] == 130
    assert found["forward_flops"] == 7168
    assert found["backward_flops"] == 7168 + 2 * 32 * 8 * 10
    assert found["schema"] == 1
    assert main(["profile", "mlp", "--set", "width=8", "--set", "layers=2", "--set", "features=4"]) == 0
    table = capsys.readouterr().out
    for text in ("130", "7.17 k", "By class of operator", "most expensive", "optimizer", "was counted"):
        assert text in table
