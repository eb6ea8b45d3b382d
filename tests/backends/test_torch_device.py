from __future__ import annotations

import copy
import logging
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trainpilot.backends import ExecutionSettings, get_backend
from trainpilot.backends.child import ChildOutcome
from trainpilot.backends.conformance import example_inputs, example_targets, tiny_workload
from trainpilot.backends.torch_device import TorchDeviceBackend, TorchSession, backend
from trainpilot.backends.torch_device.backend import missing_support
from trainpilot.backends.torch_device.kernel import run_kernel
from trainpilot.errors import BackendUnusableError, ModelError, UnsupportedError, UsageError
from trainpilot.hardware import Calibration, machine, usable_cores

DOUBLES = "tests.backends.doubles"
CPU = get_backend("cpu")


# --- the probe


def test_d09_visible_is_not_usable(caplog: pytest.LogCaptureFixture) -> None:
    cuda = TorchDeviceBackend("cuda", kernel=f"{DOUBLES}:no_kernel_image")
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        usability = cuda.probe(60.0)
    assert (usability.available, usability.usable) == (True, False)
    assert usability.reason == "no kernel image is available for execution on the device"
    assert usability.reason in caplog.text
    with pytest.raises(BackendUnusableError, match="backend cuda cannot be used: no kernel image"):
        cuda.prepare(tiny_workload())
    with pytest.raises(BackendUnusableError, match="no kernel image"):
        cuda.calibration()


def test_d09_a_hang_ends_at_the_limit() -> None:
    cuda = TorchDeviceBackend("cuda", kernel=f"{DOUBLES}:hangs")
    begin = time.monotonic()
    usability = cuda.probe(1.0)
    assert time.monotonic() - begin < 30.0
    assert (usability.available, usability.usable) == (True, False)
    assert "no answer within 1 s" in usability.reason


def test_a_device_that_works_is_described() -> None:
    cuda = TorchDeviceBackend("cuda", kernel=f"{DOUBLES}:works")
    assert cuda.probe(60.0).usable
    assert cuda.info().description == "Example device"
    assert cuda.info().memory_total_bytes == 1 << 30


def test_a_device_that_is_not_visible() -> None:
    usability = TorchDeviceBackend("xpu", kernel=f"{DOUBLES}:absent").probe(60.0)
    assert (usability.available, usability.usable, usability.reason) == (False, False, "no device is visible")


def test_probed_once_but_again_with_a_longer_limit_after_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    answers = [
        ChildOutcome("timeout", reason="no answer"),
        ChildOutcome("ok", {"available": True, "reason": ""}),
    ]

    def run(target: str, *arguments: str, timeout_s: float) -> ChildOutcome:
        assert (target, arguments) == ("some:kernel", ("cuda",))
        limits.append(timeout_s)
        return answers[len(limits) - 1]

    monkeypatch.setattr(backend, "run_in_child", run)
    cuda = TorchDeviceBackend("cuda", kernel="some:kernel")
    assert not cuda.probe(1.0).usable
    assert not cuda.probe(1.0).usable
    assert cuda.probe(30.0).usable
    assert cuda.probe(60.0).usable
    assert limits == [1.0, 30.0]


def test_why_this_installation_lacks_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.sys, "platform", "linux")
    builds = {
        "cpu": SimpleNamespace(__version__="2.13.0+cpu", cuda=None, hip=None, xpu=None),
        "cuda": SimpleNamespace(__version__="2.13.0", cuda="12.8", hip=None, xpu=None),
        "rocm": SimpleNamespace(__version__="2.13.0+rocm7", cuda=None, hip="7.0", xpu=None),
        "xpu": SimpleNamespace(__version__="2.13.0+xpu", cuda=None, hip=None, xpu="2025"),
    }
    supported = {}
    for name, version in builds.items():
        monkeypatch.setattr(backend, "_torch_version", lambda version=version: version)
        supported[name] = [device for device in backend.DEVICE_TYPES if missing_support(device) is None]
    assert supported == {"cpu": ["cpu"], "cuda": ["cpu", "cuda"], "rocm": ["cpu", "cuda"], "xpu": ["cpu", "xpu"]}
    assert missing_support("mps") == "MPS needs macOS"
    monkeypatch.setattr(backend.sys, "platform", "darwin")
    assert missing_support("mps") is None
    monkeypatch.setattr(backend, "_torch_version", lambda: None)
    assert missing_support("cpu") == "PyTorch is not installed"


def test_the_version_module_is_that_of_torch() -> None:
    version: Any = backend._torch_version()
    assert version.__version__ == torch.__version__
    assert version.cuda == torch.version.cuda


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
@pytest.mark.parametrize("device_type", ["cuda", "mps", "xpu"])
def test_the_real_kernel_where_there_is_no_device(device_type: str) -> None:
    assert run_kernel(device_type) == {"available": False, "reason": f"no {device_type} device is visible"}


def test_an_unknown_device_type() -> None:
    with pytest.raises(UsageError, match="tpu"):
        TorchDeviceBackend("tpu")


def test_what_is_known_of_the_cpu() -> None:
    info = CPU.info()
    assert machine().cpu_model in info.description
    assert info.memory_total_bytes == machine().memory_total_bytes
    assert info.memory_available_bytes is not None
    assert info.utilization is not None


# --- settings


def test_threads_default_to_the_usable_cores_and_are_restored() -> None:
    before = torch.get_num_threads()
    with CPU.prepare(tiny_workload()):
        assert torch.get_num_threads() == usable_cores()
    assert torch.get_num_threads() == before


def test_more_threads_than_cores_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="at most"):
        CPU.prepare(tiny_workload(), ExecutionSettings(threads=machine().cores_usable + 1))


class _Watching(nn.Module):
    """Keeps what its layers saw."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.seen: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        self.seen.update(
            dtype=out.dtype,
            channels_last=x.is_contiguous(memory_format=torch.channels_last),
            contiguous=x.is_contiguous(),
        )
        return out.flatten(1).float()


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_memory_format(memory_format: str) -> None:
    given = torch.randn(4, 3, 8, 8)
    if memory_format == "contiguous":  # the setting decides, not the layout of what was given
        given = given.to(memory_format=torch.channels_last)
    workload = tiny_workload(lambda: _Watching(nn.Conv2d(3, 6, 3)), example_inputs=given, targets=None, batch_size=4)
    with CPU.prepare(workload, ExecutionSettings(threads=1, memory_format=memory_format)) as session:
        session.step()
        assert session.model.seen["channels_last"] == (memory_format == "channels_last")
        assert session.model.seen["contiguous"] == (memory_format == "contiguous")
        weight = session.model.layer.weight
        assert weight.is_contiguous(memory_format=torch.channels_last) == (memory_format == "channels_last")


def test_channels_last_does_not_exist_for_volumes() -> None:
    given = torch.randn(2, 1, 4, 4, 4)
    workload = tiny_workload(lambda: nn.Conv3d(1, 2, 3), example_inputs=given, targets=None, batch_size=2)
    before = torch.get_num_threads()
    with pytest.raises(UnsupportedError, match="channels_last"):
        CPU.prepare(workload, ExecutionSettings(threads=1, memory_format="channels_last"))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_that_of_the_compute_and_weights_stay_float32(dtype: str) -> None:
    workload = tiny_workload(lambda: _Watching(nn.Linear(8, 3)))
    with CPU.prepare(workload, ExecutionSettings(threads=1, dtype=dtype)) as session:
        before = session.state_dict()["layer.weight"]
        assert np.isfinite(float(session.step()))
        assert session.model.seen["dtype"] == getattr(torch, dtype)
        after = session.state_dict()["layer.weight"]
    assert after.dtype == torch.float32
    assert not torch.equal(before, after)


def test_the_dtype_of_the_workload_is_the_default() -> None:
    with CPU.prepare(tiny_workload(dtype="bfloat16")) as session:
        assert session.settings.dtype == "bfloat16"


def test_d05_a_missing_kernel_is_an_unsupported_dtype() -> None:
    class NoHalf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.layer(x)
            raise RuntimeError("\"example_kernel\" not implemented for 'Half'")

    with (
        CPU.prepare(tiny_workload(NoHalf), ExecutionSettings(threads=1, dtype="float16")) as session,
        pytest.raises(UnsupportedError, match="'Half'"),
    ):
        session.step()


def test_out_of_memory_stays_out_of_memory() -> None:
    class Greedy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("out of memory")

    with CPU.prepare(tiny_workload(Greedy)) as session, pytest.raises(torch.OutOfMemoryError):
        session.step()


# --- steps


def test_the_steps_are_those_of_a_loop_written_by_hand() -> None:
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    x, y = torch.randn(12, 8), torch.randint(0, 3, (12,))
    batches = [(torch.randn(5, 8), torch.randint(0, 3, (5,))) for _ in range(3)]

    byhand = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(byhand.parameters(), lr=0.01)
    losses = []
    for inputs, targets in [(x, y), (x, y), *batches, (x, y)]:
        optimizer.zero_grad()
        loss = functional.cross_entropy(byhand(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    workload = tiny_workload(model, example_inputs=x, targets=y, optimizer="adamw", learning_rate=0.01, batch_size=12)
    with CPU.prepare(workload, ExecutionSettings(threads=torch.get_num_threads())) as session:
        found = [float(session.step()), float(session.step())]
        found += [float(session.step(inputs, targets)) for inputs, targets in batches]
        found.append(float(session.step()))
        state = session.state_dict()
    assert found == pytest.approx(losses, rel=1e-6)
    assert all(torch.allclose(state[name], value, atol=1e-6) for name, value in byhand.state_dict().items())


def test_a_gradient_for_the_input_is_not_written_to_the_users_tensor() -> None:
    x = torch.randn(16, 8, requires_grad=True)
    with CPU.prepare(tiny_workload(example_inputs=x)) as session:
        session.step()
        session.step()
        session.step(x, example_targets(16))
    assert x.grad is None


@pytest.mark.parametrize("change", ["read_only", "reversed", "float64", "integer_targets"])
def test_arrays_as_they_come(change: str) -> None:
    x, y = example_inputs(6).numpy(), example_targets(6).numpy()
    if change == "read_only":
        x.flags.writeable = False
    elif change == "reversed":
        x, y = x[::-1], y[::-1]
    elif change == "float64":
        x = x.astype(np.float64)
    else:
        y = y.astype(np.int32)
    kept = x.copy()
    with CPU.prepare(tiny_workload(), ExecutionSettings(threads=1)) as session:
        found = float(session.step(x, y))
    assert np.isfinite(found)
    assert np.array_equal(x, kept)


def test_structures_of_arrays() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 3)

        def forward(self, a: dict[str, torch.Tensor], *, b: torch.Tensor) -> torch.Tensor:
            return self.layer(a["x"] + b)

    x = example_inputs(16)
    workload = tiny_workload(Two, example_inputs={"a": {"x": x}, "b": x})
    with CPU.prepare(workload) as session:
        loss = session.step({"a": {"x": x.numpy()}, "b": x.numpy()}, example_targets(16).numpy())
    assert np.isfinite(float(loss))


def test_inference_tensors_are_accepted() -> None:
    with torch.inference_mode():
        x = example_inputs(4)
    with CPU.prepare(tiny_workload()) as session:
        assert np.isfinite(float(session.step(x, example_targets(4))))


def test_a_double_model_gets_double_arrays() -> None:
    with CPU.prepare(
        tiny_workload(lambda: nn.Linear(8, 3).double(), example_inputs=example_inputs(16).double())
    ) as session:
        assert session.step(example_inputs(4).numpy(), example_targets(4)).dtype == torch.float64


def test_modes_of_submodules_stay_as_given_while_training() -> None:
    workload = tiny_workload()
    with CPU.prepare(workload) as session:
        session.step()
        assert not session.model[1].training
        assert session.model[3].training
        assert session.state_dict()["1.num_batches_tracked"] == 0  # statistics in evaluation mode do not move


def test_a_model_without_weights_on_any_device() -> None:
    with torch.device("meta"):
        model = nn.Linear(8, 3)
    with pytest.raises(ModelError, match="meta device"):
        CPU.prepare(tiny_workload(model))


def test_a_module_that_cannot_be_copied() -> None:
    class Stubborn(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    with pytest.raises(ModelError, match="give a function that builds it"):
        CPU.prepare(tiny_workload(Stubborn(8, 3)))


def test_lazy_layers_with_a_wrong_input() -> None:
    with pytest.raises(ModelError, match="lazy layers cannot be initialised"):
        CPU.prepare(tiny_workload(lambda: nn.LazyConv2d(3, 3)))


def test_weights_of_a_built_model_are_the_same_each_time_whatever_the_users_seed() -> None:
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with CPU.prepare(tiny_workload(lambda: nn.Linear(8, 3))) as session:
            states.append(session.state_dict()["weight"])
    assert torch.equal(*states)


def test_synchronize_waits_for_the_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    session = TorchSession.__new__(TorchSession)
    session._device = torch.device("cuda", 0)
    session.synchronize()
    assert waited == [torch.device("cuda", 0)]


# --- calibration


def test_calibration_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(tmp_path))
    calls: list[tuple[Any, ...]] = []

    def calibrate(device: str, name: str, threads: int, dtype: str, *, refresh: bool) -> Calibration:
        calls.append((device, name, threads, dtype, refresh))
        return Calibration("m", name, threads, dtype, {"dispatch_s": 1e-6}, {}, 0.0)

    monkeypatch.setattr(backend, "calibrate", calibrate)
    assert CPU.calibration(ExecutionSettings(threads=1, dtype="bfloat16"), run=False) is None
    assert calls == []
    found = CPU.calibration(ExecutionSettings(threads=1, dtype="bfloat16"), refresh=True)
    assert found is not None
    assert found.dtype == "bfloat16"
    CPU.calibration()
    assert calls == [("cpu", "cpu", 1, "bfloat16", True), ("cpu", "cpu", usable_cores(), "float32", False)]
