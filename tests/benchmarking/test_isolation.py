"""The real worker with models that do what they like."""

import pytest

from tests.benchmarking.helpers import Rows
from trainpilot.benchmarking import load_sweep, run_sweep

MODELS = {
    "good": "def build():\n    return torch.nn.Linear(4, 3)",
    "raises": "def build():\n    raise ValueError('not today')",
    "aborts": "import os\ndef build():\n    os.abort()",
    "prints": "def build():\n    [print('{' * 100_000) for _ in range(50)]\n    return torch.nn.Linear(4, 3)",
    "changes": "torch.set_default_dtype(torch.float64)\ndef build():\n    return torch.nn.Linear(4, 3)",
    "allocates": "def build():\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 26))",
}


@pytest.mark.slow
def test_one_row_each_and_nothing_spreads(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINPILOT_WORKER_MEMORY_BYTES", str(3 << 30))
    spaces = ""
    for name, body in MODELS.items():
        (tmp_path / f"{name}.py").write_text(f"import torch\n{body}\n")
        spaces += f'[[space]]\nmodel = "{name}.py:build"\ninput = "4"\nclasses = 3\nbatch_size = 2\n'
    (tmp_path / "own.toml").write_text(
        "rounds = 1\ntimeout_s = 60\noperator_steps = 1\n[timing]\ntarget_s = 0.02\nwarmup_s = 0.01\n"
        f'{spaces}[[space]]\nmodel = "mlp"\nsettings.width = 8\nbatch_size = [2, 3, 4]\n'
    )
    sink = Rows()
    summary = run_sweep(load_sweep(tmp_path / "own.toml"), sink=sink)
    rows = {row.name.rpartition("/")[2].removesuffix(".py:build"): row for row in sink.rows if row.family == "custom"}
    assert {name: row.status for name, row in rows.items()} == {
        "good": "ok",
        "raises": "failed",
        "aborts": "killed",
        "prints": "ok",
        "changes": "ok",
        "allocates": "oom",
    }
    assert summary.measured == 9
    assert "ValueError: not today" in rows["raises"].reason
    assert "SIGABRT" in rows["aborts"].reason
    assert rows["good"].features["params"] == 4 * 3 + 3
    ordinary = [row for row in sink.rows if row.family == "mlp"]
    assert [row.status for row in ordinary] == ["ok"] * 3
    # A default of float64 that stayed behind would show in the inputs of whatever ran next.
    assert {dtype for row in ordinary for _, dtype in row.input_signature} <= {"float32", "int64"}
    assert all(row.step_time_s > 0 for row in sink.rows if row.status == "ok")
    assert all(row.control_time_s > 0 for row in sink.rows)
    timings = [timing for found in sink.operators for timing in found]
    assert any(timing.op == "aten.addmm" for timing in timings)
