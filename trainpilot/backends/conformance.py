"""The contract of a backend as tests.

A new backend's tests subclass ``BackendConformance`` and inherit them all::

    class TestMyBackend(BackendConformance):
        def make_backend(self) -> Backend:
            return MyBackend()

Needs pytest. Where the backend is not usable, its refusal is tested and the tests of its sessions are skipped.
"""

# The names of the tests are sentences.
# ruff: noqa: D102

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from trainpilot.backends.base import Backend, DeviceInfo, ExecutionSettings, Usability
from trainpilot.errors import BackendError, BackendUnusableError, NothingToTrainError, UnsupportedError, UsageError
from trainpilot.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH_SIZE = 16
FEATURES = 8
CLASSES = 3


def example_inputs(batch_size: int) -> torch.Tensor:
    """Inputs of the tiny problem: float32 of shape (batch_size, 8)."""
    import torch

    return torch.randn(batch_size, FEATURES, generator=torch.Generator().manual_seed(3))


def example_targets(batch_size: int) -> torch.Tensor:
    """Targets of the tiny problem: which of the first three inputs is largest, int64 of shape (batch_size,)."""
    return example_inputs(batch_size)[:, :CLASSES].argmax(1)


def tiny_model() -> nn.Module:
    """A classifier with dropout, batch statistics and one submodule in evaluation mode."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = nn.Sequential(
            nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, CLASSES)
        )
    model[1].eval()
    return model


def tiny_workload(model: Any = tiny_model, **fields: Any) -> Workload:
    """The tiny problem as a workload."""
    given = {
        "example_inputs": example_inputs,
        "targets": example_targets,
        "optimizer": "adam",
        "batch_size": BATCH_SIZE,
        "learning_rate": 0.02,
        **fields,
    }
    return Workload(model=model, **given)


class GlobalSnapshot:
    """Global state of the process that no backend may leave changed; equal if nothing changed."""

    def __init__(self) -> None:
        import torch

        numpy_state: Any = np.random.get_state()
        self._parts = (
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            tuple(torch.get_rng_state().tolist()),
            (numpy_state[0], tuple(numpy_state[1].tolist()), *numpy_state[2:]),
            random.getstate(),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalSnapshot) and self._parts == other._parts

    __hash__ = None  # type: ignore[assignment]


class BackendConformance:
    """Tests that every backend passes."""

    def make_backend(self) -> Backend:
        """Return the backend under test."""
        raise NotImplementedError

    def unsupported_settings(self) -> Sequence[ExecutionSettings]:
        """Execution settings that the backend must refuse with ``UnsupportedError``."""
        return ()

    @pytest.fixture(autouse=True)
    def _own_data_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(tmp_path / "data"))

    @pytest.fixture
    def backend(self) -> Backend:
        """The backend under test."""
        return self.make_backend()

    @pytest.fixture
    def usable(self, backend: Backend) -> Iterator[Backend]:
        """The backend, or a skip with its reason; afterwards the process is as it was before."""
        usability = backend.probe()
        if not usability.usable:
            pytest.skip(f"{backend.name}: {usability.reason}")
        before = GlobalSnapshot()
        yield backend
        assert GlobalSnapshot() == before, "global state was not restored"

    # --- what every backend answers, usable or not

    def test_has_a_name(self, backend: Backend) -> None:
        assert isinstance(backend.name, str)
        assert backend.name

    def test_probe_is_honest(self, backend: Backend) -> None:
        usability = backend.probe()
        assert isinstance(usability, Usability)
        assert usability.available or not usability.usable, "usable without being visible"
        assert bool(usability.reason) != usability.usable, "a reason belongs to what cannot be used, and only to it"
        assert backend.probe() == usability

    def test_what_the_probe_refuses_is_refused_with_its_reason(self, backend: Backend) -> None:
        usability = backend.probe()
        if usability.usable:
            with backend.prepare(tiny_workload()) as session:
                session.step()
            return
        with pytest.raises(BackendUnusableError) as caught:
            backend.prepare(tiny_workload())
        assert usability.reason in str(caught.value)
        with pytest.raises(BackendUnusableError):
            backend.calibration(refresh=True)

    def test_info_never_raises(self, backend: Backend) -> None:
        info = backend.info()
        assert isinstance(info, DeviceInfo)
        assert info.backend == backend.name
        assert info.description
        assert info.memory_total_bytes is None or info.memory_total_bytes > 0
        assert info.memory_available_bytes is None or info.memory_available_bytes >= 0
        assert info.utilization is None or 0.0 <= info.utilization <= 1.0

    def test_calibration_without_a_run_starts_nothing(self, backend: Backend) -> None:
        found = backend.calibration(run=False)
        assert found is None or found.backend == backend.name

    # --- sessions

    def test_a_step_returns_a_detached_scalar(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session:
            session.synchronize()
            loss = session.step()
            session.synchronize()
            assert tuple(loss.shape) == ()
            assert not loss.requires_grad
            assert math.isfinite(float(loss))

    def test_the_loss_falls(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session:
            losses = [float(session.step()) for _ in range(60)]
        assert sum(losses[-5:]) < 0.7 * sum(losses[:5])

    def test_two_sessions_run_the_same_steps(self, usable: Backend) -> None:
        runs = []
        for _ in range(2):
            with usable.prepare(tiny_workload()) as session:
                runs.append([float(session.step()) for _ in range(3)])
        assert runs[0] == pytest.approx(runs[1], rel=1e-5)

    def test_batches_are_arrays_or_tensors_of_any_size(self, usable: Backend) -> None:
        inputs, targets = example_inputs(6), example_targets(6)
        kept = inputs.clone()
        with usable.prepare(tiny_workload()) as session:
            first = float(session.step(inputs, targets))
            second = float(session.step(inputs.numpy().astype(np.float64), targets.numpy()))
        assert math.isfinite(first)
        assert math.isfinite(second)
        assert inputs.equal(kept)

    def test_targets_without_inputs_are_an_error(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session, pytest.raises(UsageError):
            session.step(None, example_targets(BATCH_SIZE))

    def test_steps_work_where_gradients_are_off(self, usable: Backend) -> None:
        import torch

        with usable.prepare(tiny_workload()) as session, torch.no_grad():
            assert math.isfinite(float(session.step()))

    def test_forward_gives_outputs_on_the_cpu_and_changes_nothing(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session:
            before = session.state_dict()
            modes = [module.training for module in session.model.modules()]
            outputs = session.forward()
            few = session.forward(example_inputs(5).numpy())
            assert [module.training for module in session.model.modules()] == modes
            after = session.state_dict()
        assert outputs.device.type == "cpu"
        assert tuple(outputs.shape) == (BATCH_SIZE, CLASSES)
        assert tuple(few.shape) == (5, CLASSES)
        assert not outputs.requires_grad
        assert all(before[name].equal(after[name]) for name in before)

    def test_the_users_objects_stay_as_they_were(self, usable: Backend) -> None:
        import torch

        model, inputs, targets = tiny_model(), example_inputs(BATCH_SIZE), example_targets(BATCH_SIZE)
        state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
        kept_inputs, kept_targets = inputs.clone(), targets.clone()
        before = GlobalSnapshot()
        with usable.prepare(tiny_workload(model, example_inputs=inputs, targets=targets)) as session:
            assert session.model is not model
            for _ in range(3):
                session.step()
            session.forward()
        assert GlobalSnapshot() == before
        assert all(value.equal(state[name]) for name, value in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.equal(inputs, kept_inputs)
        assert torch.equal(targets, kept_targets)

    def test_a_model_that_works_in_place_gets_the_same_batch_at_each_step(self, usable: Backend) -> None:
        inputs = example_inputs(BATCH_SIZE)
        kept = inputs.clone()
        workload = tiny_workload(_in_place_model, example_inputs=inputs, learning_rate=1e-12)
        with usable.prepare(workload) as session:
            first = session.forward()
            for _ in range(3):
                session.step()
            last = session.forward()
        assert inputs.equal(kept)
        assert np.allclose(first.numpy(), last.numpy(), atol=1e-3)

    def test_lazy_layers_are_initialised_in_the_copy_only(self, usable: Backend) -> None:
        from torch import nn
        from torch.nn.parameter import is_lazy

        model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(CLASSES))
        with usable.prepare(tiny_workload(model)) as session:
            assert math.isfinite(float(session.step()))
        assert all(is_lazy(parameter) for parameter in model.parameters())

    def test_the_state_is_a_snapshot_on_the_cpu(self, usable: Backend) -> None:
        model = tiny_model()
        with usable.prepare(tiny_workload(model)) as session:
            state = session.state_dict()
            kept = copy.deepcopy(state)
            session.step()
        assert set(state) == set(model.state_dict())
        assert all(value.device.type == "cpu" for value in state.values())
        assert all(value.equal(kept[name]) for name, value in state.items())

    def test_peak_memory_is_unknown_or_a_number_of_bytes(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session:
            session.step()
            peak = session.peak_memory_bytes()
        assert peak is None or (isinstance(peak, int) and peak >= 0)

    def test_placement_is_told(self, usable: Backend) -> None:
        with usable.prepare(tiny_workload()) as session:
            session.step()
            assert session.placement()

    def test_closing_twice_is_allowed_and_ends_the_session(self, usable: Backend) -> None:
        session = usable.prepare(tiny_workload())
        session.close()
        session.close()
        with pytest.raises(BackendError):
            session.step()

    def test_an_exception_inside_a_session_restores_everything(self, usable: Backend) -> None:
        before = GlobalSnapshot()
        session = usable.prepare(tiny_workload(), ExecutionSettings(threads=1))
        with pytest.raises(ZeroDivisionError), session:
            float(session.step()) / 0
        assert GlobalSnapshot() == before

    def test_a_model_with_nothing_to_train_is_refused(self, usable: Backend) -> None:
        before = GlobalSnapshot()
        with pytest.raises(NothingToTrainError):
            usable.prepare(tiny_workload(_frozen_model), ExecutionSettings(threads=1))
        assert GlobalSnapshot() == before

    def test_a_builder_that_raises_leaves_nothing_behind(self, usable: Backend) -> None:
        before = GlobalSnapshot()
        with pytest.raises(Exception, match="no such layer"):
            usable.prepare(tiny_workload(_broken_model), ExecutionSettings(threads=1))
        assert GlobalSnapshot() == before

    def test_what_the_backend_does_not_have_is_refused(self, usable: Backend) -> None:
        for settings in self.unsupported_settings():
            with pytest.raises(UnsupportedError):
                usable.prepare(tiny_workload(), settings)

    def test_threads_are_honoured_on_the_cpu(self, usable: Backend) -> None:
        import torch

        with usable.prepare(tiny_workload(), ExecutionSettings(threads=1)) as session:
            session.step()
            if session.placement() == "cpu":
                assert torch.get_num_threads() == 1


def _in_place_model() -> nn.Module:
    from torch import nn

    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer(x.mul_(2.0))
            return out

    return InPlace()


def _frozen_model() -> nn.Module:
    return tiny_model().requires_grad_(False)


def _broken_model() -> nn.Module:
    np.random.rand(3)
    raise KeyError("no such layer")
