"""The shipped suite on the shipped backends, on a backend of another kind, and on backends with planted defects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch

from tests.backends.eager import EagerBackend, EagerSession
from trainpilot.backends import Backend, DeviceInfo, ExecutionSettings, Usability
from trainpilot.backends.ane import AneBackend
from trainpilot.backends.conformance import BackendConformance, GlobalSnapshot
from trainpilot.backends.simulated import SimulatedBackend
from trainpilot.backends.torch_device import TorchDeviceBackend


class TestCpu(BackendConformance):
    def make_backend(self) -> Backend:
        return TorchDeviceBackend("cpu")

    def unsupported_settings(self) -> Sequence[ExecutionSettings]:
        return (ExecutionSettings(threads=4096),)


class TestSimulated(BackendConformance):
    def make_backend(self) -> Backend:
        return SimulatedBackend()


class TestAne(BackendConformance):
    def make_backend(self) -> Backend:
        return AneBackend()


class TestCuda(BackendConformance):
    def make_backend(self) -> Backend:
        return TorchDeviceBackend("cuda")


class TestMps(BackendConformance):
    def make_backend(self) -> Backend:
        return TorchDeviceBackend("mps")


class TestXpu(BackendConformance):
    def make_backend(self) -> Backend:
        return TorchDeviceBackend("xpu")


class TestEager(BackendConformance):
    """A backend that shares no code with the shipped ones."""

    def make_backend(self) -> Backend:
        return EagerBackend()


# --- planted defects: each must be caught by the test that is named


class _OnTheUsersModel(EagerSession):
    def _own(self, model: torch.nn.Module) -> torch.nn.Module:
        return model


class _NeverLearns(EagerSession):
    def step(self, inputs: Any = None, targets: Any = None) -> Any:
        state = self.state_dict()
        loss = super().step(inputs, targets)
        self.model.load_state_dict(state)
        return loss


class _LeavesThreads(EagerSession):
    def close(self) -> None:
        super().close()
        torch.set_num_threads(torch.get_num_threads() + 1)


class _LeavesRandomState(EagerSession):
    def close(self) -> None:
        super().close()
        torch.rand(1)


class _AttachedLoss(EagerSession):
    def step(self, inputs: Any = None, targets: Any = None) -> Any:
        return super().step(inputs, targets).requires_grad_()


class _ForgetsModes(EagerSession):
    def forward(self, inputs: Any = None) -> Any:
        outputs = super().forward(inputs)
        self.model.train()
        return outputs


class _SharesItsState(EagerSession):
    def state_dict(self) -> dict[str, Any]:
        return dict(self.model.state_dict())


class _DriftingBatch(EagerSession):
    def _copied(self, value: Any) -> Any:
        return value


class _RunsAfterItsEnd(EagerSession):
    def _require_open(self) -> None:
        return


class _UsableWithAReason(EagerBackend):
    def probe(self, timeout_s: float = 30.0) -> Usability:
        return Usability(available=True, usable=True, reason="because")


class _BusyBeyondOne(EagerBackend):
    def info(self) -> DeviceInfo:
        return DeviceInfo("eager", "overworked", None, None, 1.5)


class _AcceptsWhatItRefused(EagerBackend):
    def probe(self, timeout_s: float = 30.0) -> Usability:
        return Usability(available=True, usable=False, reason="no kernel image")


class _Suite(BackendConformance):
    __test__: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("defect", "test"),
    [
        (_OnTheUsersModel, "test_the_users_objects_stay_as_they_were"),
        (_NeverLearns, "test_the_loss_falls"),
        (_LeavesThreads, "test_an_exception_inside_a_session_restores_everything"),
        (_LeavesRandomState, "test_the_users_objects_stay_as_they_were"),
        (_AttachedLoss, "test_a_step_returns_a_detached_scalar"),
        (_ForgetsModes, "test_forward_gives_outputs_on_the_cpu_and_changes_nothing"),
        (_SharesItsState, "test_the_state_is_a_snapshot_on_the_cpu"),
        (_DriftingBatch, "test_a_model_that_works_in_place_gets_the_same_batch_at_each_step"),
        (_RunsAfterItsEnd, "test_closing_twice_is_allowed_and_ends_the_session"),
        (_UsableWithAReason, "test_probe_is_honest"),
        (_BusyBeyondOne, "test_info_never_raises"),
        (_AcceptsWhatItRefused, "test_what_the_probe_refuses_is_refused_with_its_reason"),
    ],
)
def test_a_planted_defect_is_caught(defect: Any, test: str) -> None:
    backend = defect() if issubclass(defect, Backend) else EagerBackend(defect)
    threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    check: Callable[[Any, Backend], None] = getattr(BackendConformance, test)
    try:
        check(_Suite(), EagerBackend())  # passes without the defect
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check(_Suite(), backend)
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(random_state)


def test_snapshots_see_a_draw() -> None:
    state = torch.get_rng_state()
    before = GlobalSnapshot()
    assert GlobalSnapshot() == before
    torch.rand(1)
    assert GlobalSnapshot() != before
    torch.set_rng_state(state)
