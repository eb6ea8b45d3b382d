import math
import time
import weakref
from dataclasses import asdict

import psutil
import pytest
import torch

from tests.benchmarking.helpers import configuration, site
from trainpilot.benchmarking import Configuration, TimingLimits, load_sweep
from trainpilot.benchmarking import execute as execute_module
from trainpilot.benchmarking.execute import execute
from trainpilot.benchmarking.failures import failure_of
from trainpilot.benchmarking.measurement import Measurement
from trainpilot.benchmarking.rates import estimate_step_s, peak_flops_per_s
from trainpilot.benchmarking.rows import build_row
from trainpilot.errors import BackendUnusableError, ModelError, UnsupportedError
from trainpilot.store.exchange import row_problems
from trainpilot.workload import InputSpec, Workload

TIMING = TimingLimits(target_s=0.02, warmup_s=0.01, max_s=1.0, min_windows=3, max_windows=20)


def task(found: Configuration, **changes):
    given = {
        "configuration": found.to_dict(),
        "timing": asdict(TIMING),
        "statistic": "median",
        "cap_s": 100.0,
        "operator_steps": 0,
        "calibration": {},
        "cores": 2,
        "control_ratio": None,
        "trace": None,
    }
    return given | changes


def own(tmp_path, body, *, dtype="float32", imports="import torch"):
    """A configuration of a model of one's own."""
    path = tmp_path / "net.py"
    path.write_text(f"{imports}\n{body}\n")
    workload = Workload(model=f"{path}:build", input_spec=InputSpec(shape=(4,)), classes=3, batch_size=2, dtype=dtype)
    return Configuration(workload=workload.to_spec(), family="custom", backend="cpu", threads=1)


LINEAR = "def build():\n    return torch.nn.Linear(4, 3)"


def test_a_real_configuration_has_every_label():
    reply = execute(task(configuration(8)))
    assert (reply["status"], reply["reason"]) == ("ok", "")
    labels = reply["labels"]
    assert labels["step_time_s"] > 0
    assert labels["first_step_s"] > 0
    assert labels["setup_time_s"] > 0
    assert labels["data_time_s"] > 0
    assert labels["cpu_time_s"] > 0
    assert labels["steps"] >= 3
    assert labels["loss_finite"] is True
    assert labels["actual_placement"] == "cpu"
    assert labels["energy_j"] is None
    assert labels["step_quantiles_s"]["min"] <= labels["step_time_s"] <= labels["step_quantiles_s"]["max"]
    # Two linear layers and an output layer: 784 x 8, 8 x 8 and 8 x 10 weights with their biases.
    assert labels["features"]["params"] == 784 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10
    assert all(math.isfinite(value) for value in labels["features"].values())
    assert labels["op_groups"]
    assert labels["workload_hash"] == configuration(8).live_workload.workload_hash
    assert set(labels) <= set(Measurement.__dataclass_fields__)
    assert reply["changed"] == []


def test_the_forward_pass_alone_is_another_phase():
    reply = execute(task(configuration(8, phase="forward")))
    assert reply["status"] == "ok"
    assert reply["labels"]["loss_finite"] is None
    assert reply["labels"]["step_time_s"] > 0


def test_a_sweep_file_may_ask_for_the_forward_pass(tmp_path):
    path = tmp_path / "both.toml"
    path.write_text('[[space]]\nmodel = "mlp"\nsettings.width = 8\nbatch_size = 4\nphase = ["train_step", "forward"]\n')
    whole, forward = load_sweep(path).configurations(cores=1)
    assert (whole.phase, forward.phase) == ("train_step", "forward")
    assert whole.key("m", {}) != forward.key("m", {})
    assert whole.workload_identity == forward.workload_identity
    reply = execute(task(forward))
    row = build_row(
        forward, site(), key="k", repetition=0, sweep_id="both", status="ok", reason="", labels=reply["labels"]
    )
    assert (row.phase, row.status, row.loss_finite) == ("forward", "ok", None)
    assert row.step_time_s > 0
    assert list(row_problems(row)) == []
    # Only the time is another one: the trace is that of the whole step, which a predictor takes its part from.
    assert row.features == execute(task(whole))["labels"]["features"]
    assert reply["operators"] == []


def test_the_simulated_backend_takes_its_own_time():
    found = Configuration(workload=configuration(8).workload, family="mlp", backend="simulated", threads=1)
    first, second = execute(task(found)), execute(task(found))
    assert first["status"] == "ok"
    assert first["labels"]["simulated"] is True
    assert first["labels"]["step_time_s"] == second["labels"]["step_time_s"]
    assert first["labels"]["first_step_s"] == pytest.approx(3 * first["labels"]["step_time_s"])
    assert first["contended"] == ""
    assert first["labels"]["data_time_s"] is None


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("def build():\n    raise ValueError('no\\nsuch thing')", "failed", "ValueError: no such thing"),
        ("def build():\n    return 3", "failed", "must return a torch.nn.Module"),
        ("def build():\n    import sys; sys.exit('bye')", "failed", "SystemExit: bye"),
        ("def build():\n    return torch.nn.ReLU()", "failed", "nothing to train"),
        (
            "class Net(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x) * float('nan')\n"
            "def build():\n    return Net(4, 3)",
            "nonfinite_loss",
            "the loss was not finite",
        ),
    ],
)
def test_what_a_model_does_wrong_is_its_status(tmp_path, body, status, reason):
    reply = execute(task(own(tmp_path, body)))
    assert reply["status"] == status
    assert reason in reply["reason"]
    assert "\n" not in reply["reason"]


def test_a_missing_file_is_a_row():
    workload = Workload(model="nowhere.py:build", input_spec=InputSpec(shape=(4,)), batch_size=2)
    found = Configuration(workload=workload.to_spec(), family="custom", backend="cpu", threads=1)
    assert found.key("m", {})
    reply = execute(task(found))
    assert reply["status"] == "failed"
    assert "there is no file nowhere.py" in reply["reason"]


@pytest.mark.parametrize(
    ("line", "name", "undo"),
    [
        ("torch.set_default_dtype(torch.float64)", "default dtype", lambda: torch.set_default_dtype(torch.float32)),
        (
            "torch.use_deterministic_algorithms(True)",
            "deterministic algorithms",
            lambda: torch.use_deterministic_algorithms(False),
        ),
        (
            "torch.autograd.set_detect_anomaly(True)",
            "anomaly detection",
            lambda: torch.autograd.set_detect_anomaly(False),
        ),
        ("torch.set_flush_denormal(True)", "flushing of denormals", lambda: torch.set_flush_denormal(False)),
    ],
)
def test_changed_global_settings_are_told(tmp_path, line, name, undo):
    try:
        reply = execute(task(own(tmp_path, f"{line}\n{LINEAR}")))
        assert name in reply["changed"]
    finally:
        undo()


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (
            "import os\nos.posix_spawn('/bin/sleep', ['sleep', '60'], {})\n" + LINEAR,
            "child processes",
        ),
        ("def build():\n    raise ValueError('no')", "status failed"),
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()\n"
            + LINEAR,
            "Python's threads",
        ),
        ("import time\nreal = time.perf_counter\ntime.perf_counter = lambda: real() / 2\n" + LINEAR, "clocks"),
    ],
)
def test_what_code_left_in_the_process_is_told(tmp_path, monkeypatch, body, left):
    monkeypatch.setattr(time, "perf_counter", time.perf_counter)  # undone afterwards
    before = psutil.Process().children()
    reply = execute(task(own(tmp_path, body)))
    assert left in reply["changed"]
    for child in psutil.Process().children():
        if child not in before:
            child.kill()
            child.wait()


def test_a_model_that_changes_the_threads_gives_no_label(tmp_path):
    before = torch.get_num_threads()
    # The threads are changed in forward, after the session has set them.
    body = (
        "class Net(torch.nn.Linear):\n    def forward(self, x):\n        torch.set_num_threads(2)\n"
        "        return super().forward(x)\ndef build():\n    return Net(4, 3)"
    )
    try:
        reply = execute(task(own(tmp_path, body)))
    finally:
        torch.set_num_threads(before)
    assert reply["status"] == "invalid"
    assert "changed the number of threads from 1 to 2" in reply["reason"]


def test_b03_nothing_of_a_failure_stays_alive(tmp_path, monkeypatch):
    kept = []

    def boom(session, *_):
        tensor = torch.zeros(1000)
        kept.extend((weakref.ref(session.model), weakref.ref(tensor)))
        raise torch.OutOfMemoryError("x")

    monkeypatch.setattr(execute_module, "_time_steps", boom)
    reply = execute(task(configuration(8)))
    assert (reply["status"], reply["reason"]) == ("oom", "OutOfMemoryError: x")
    assert [reference() for reference in kept] == [None, None]


def test_an_allocation_beyond_the_memory_is_oom(tmp_path):
    reply = execute(task(own(tmp_path, "def build():\n    torch.empty(1 << 50); return torch.nn.Linear(4, 3)")))
    assert reply["status"] == "oom"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (MemoryError(), "oom"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (RuntimeError("MPS backend out of memory"), "oom"),
        (RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"), "unsupported"),
        (NotImplementedError("Could not run 'aten::x' with arguments from the 'MPS' backend"), "unsupported"),
        (UnsupportedError("no such dtype"), "unsupported"),
        (BackendUnusableError("no device"), "unsupported"),
        (RuntimeError("no kernel image is available for execution on the device"), "unsupported"),
        (RuntimeError("shapes cannot be multiplied"), "failed"),
        (KeyError("x"), "failed"),
    ],
)
def test_what_an_exception_means(error, status):
    assert failure_of(error)[0] == status


def test_an_exception_counts_as_what_caused_it():
    wrapped = ModelError("net: the builder raised MemoryError")
    wrapped.__cause__ = MemoryError()
    assert failure_of(wrapped) == ("oom", "ModelError: net: the builder raised MemoryError")


def test_reasons_are_short():
    status, reason = failure_of(ValueError("word\n" * 1000))
    assert status == "failed"
    assert len(reason) <= 500
    assert "\n" not in reason


def test_what_is_too_expensive_is_not_tried():
    reply = execute(task(configuration(8), cap_s=1e-9))
    assert "the sweep's cap is 1e-09 s" in reply["skipped"]
    assert "step_time_s" not in reply["labels"]


def test_a_rate_that_cannot_be_is_invalid():
    reply = execute(task(configuration(8), calibration={"matmul_flops_per_s": 1.0}, cap_s=1e12))
    assert reply["status"] == "invalid"
    assert "the device cannot exceed 3" in reply["reason"]


def test_estimates_add_up():
    features = {"flops.forward": 1e9, "flops.backward": 2e9, "bytes.forward": 5e8, "calls.optimizer": 100.0}
    figures = {"matmul_flops_per_s": 1e10, "memory_bytes_per_s": 1e10, "dispatch_s": 1e-5}
    # 3e9 / 1e10 + 5e8 / 1e10 + 100 * 1e-5
    assert estimate_step_s(features, 1, figures) == pytest.approx(0.3 + 0.05 + 0.001)
    assert estimate_step_s(features, 2, {}) < estimate_step_s(features, 1, {})


def test_peaks():
    figures = {"matmul_flops_per_s": 1e10, "conv_flops_per_s": 2e10, "memory_bytes_per_s": 1e12}
    assert peak_flops_per_s("cpu", 1, "float32", figures) == 6e10
    assert peak_flops_per_s("cpu", 2, "float32", {}) == 2 * peak_flops_per_s("cpu", 1, "float32", {})
    assert peak_flops_per_s("mps", 1, "float32", {}) < 17e15  # what enqueueing looked like on an M2 Ultra
    assert peak_flops_per_s("simulated", 1, "float32", {}) is None


def test_contention_is_told_by_the_control_workload():
    reply = execute(task(configuration(8), control_ratio=9.0))
    assert reply["status"] == "ok"
    assert reply["contended"] != ""


def test_operators_are_timed_inside_real_steps():
    reply = execute(task(configuration(64), operator_steps=2))
    found = reply["operators"]
    assert {o["phase"] for o in found} == {"forward", "backward", "optimizer"}
    addmm = [o for o in found if o["op"] == "aten.addmm" and o["phase"] == "forward"]
    assert sum(o["calls"] for o in addmm) == 3  # three linear layers
    assert all(o["op_class"] == "matmul" for o in addmm)
    assert [[64, 784], [784, 8]] in [o["shapes"][1:] for o in addmm]
    assert all(o["time_s"] > 0 and math.isfinite(o["agreement"]) for o in found)
    # The operators' times lie inside the step: their plain sum exceeds it only by what timing costs.
    assert len({o["agreement"] for o in found}) == 1


def test_a_later_round_takes_over_the_trace_instead_of_tracing(monkeypatch):
    first = execute(task(configuration(8)))["labels"]
    trace = {name: first[name] for name in execute_module.TRACE_FIELDS}
    monkeypatch.setattr("trainpilot.profiling.profile", lambda workload: pytest.fail("it was traced again"))
    second = execute(task(configuration(8), trace=trace))
    assert second["status"] == "ok"
    assert {name: second["labels"][name] for name in execute_module.TRACE_FIELDS} == trace


def test_every_row_has_a_control_time_of_its_own():
    assert execute(task(configuration(8)))["labels"]["control_time_s"] > 0


def test_long_steps_are_not_timed_operator_by_operator(monkeypatch):
    monkeypatch.setattr(execute_module, "MOST_TIMED_STEP_S", 0.0)
    assert execute(task(configuration(64), operator_steps=2))["operators"] == []
