"""A small backend of another kind: plain gradient descent in float64, written for the tests of the shipped suite."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from trainpilot.backends import Backend, DeviceInfo, ExecutionSettings, TrainingSession, Usability
from trainpilot.errors import BackendError, BackendUnusableError, NothingToTrainError, UsageError
from trainpilot.hardware import Calibration
from trainpilot.workload import ModelInputs, Workload, compute_loss, map_tensors


class EagerSession(TrainingSession):
    def __init__(self, workload: Workload, settings: ExecutionSettings) -> None:
        self._before = (torch.get_num_threads(), torch.get_rng_state(), np.random.get_state(), random.getstate())
        self._open = True
        try:
            torch.manual_seed(1)
            torch.set_num_threads(settings.threads or 1)
            parts = workload.resolve()
            assert workload.batch_size is not None
            self._inputs = map_tensors(torch.clone, parts.make_inputs(workload.batch_size))
            self._targets = None if parts.make_targets is None else parts.make_targets(workload.batch_size)
            self.model = self._own(parts.model)
            with torch.no_grad():
                self._call(copy.deepcopy(self.model).eval(), self._inputs)  # finds errors early
            if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in self.model.parameters()):
                self._call(self.model, self._inputs)
            self._trained = [p for p in self.model.parameters() if p.requires_grad]
            if not self._trained:
                raise NothingToTrainError("nothing to train")
            self._rate = 0.5 if (workload.learning_rate or 1.0) > 1e-6 else 1e-12
        except BaseException:
            self.close()
            raise

    def _own(self, model: torch.nn.Module) -> torch.nn.Module:
        return copy.deepcopy(model)

    def _copied(self, value: Any) -> Any:
        return map_tensors(torch.clone, value)

    def _call(self, model: torch.nn.Module, inputs: ModelInputs) -> Any:
        given = self._copied(inputs)
        return model(*given.args, **given.kwargs)

    def _require_open(self) -> None:
        if not self._open:
            raise BackendError("closed")

    def step(self, inputs: Any = None, targets: Any = None) -> Any:
        self._require_open()
        if inputs is None and targets is not None:
            raise UsageError("targets without inputs")
        batch = self._inputs if inputs is None else ModelInputs.of(_tensor(inputs))
        wanted = self._targets if inputs is None else _tensor(targets)
        with torch.enable_grad():
            loss = compute_loss(self._call(self.model, batch), wanted, None)
            gradients = torch.autograd.grad(loss, self._trained)
        with torch.no_grad():
            for parameter, gradient in zip(self._trained, gradients, strict=True):
                parameter.sub_(self._rate * gradient)
        return loss.detach()

    def forward(self, inputs: Any = None) -> Any:
        self._require_open()
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad():
            outputs = self._call(self.model, self._inputs if inputs is None else ModelInputs.of(_tensor(inputs)))
        for module, training in modes.items():
            module.training = training
        return outputs

    def synchronize(self) -> None:
        return

    def peak_memory_bytes(self) -> int | None:
        return None

    def placement(self) -> str:
        return "cpu"

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(dict(self.model.state_dict()))

    def close(self) -> None:
        if self._open:
            self._open = False
            threads, torch_state, numpy_state, python_state = self._before
            torch.set_num_threads(threads)
            torch.set_rng_state(torch_state)
            np.random.set_state(numpy_state)
            random.setstate(python_state)


class EagerBackend(Backend):
    name: ClassVar[str] = "eager"

    def __init__(self, session: Callable[[Workload, ExecutionSettings], EagerSession] = EagerSession) -> None:
        self._session = session

    def probe(self, timeout_s: float = 30.0) -> Usability:
        return Usability(available=True, usable=True)

    def info(self) -> DeviceInfo:
        return DeviceInfo("eager", "plain gradient descent", None, None, None)

    def calibration(
        self, settings: ExecutionSettings | None = None, *, refresh: bool = False, run: bool = True
    ) -> Calibration | None:
        if run:
            raise BackendUnusableError("not calibrated")
        return None

    def prepare(
        self,
        workload: Workload,
        settings: ExecutionSettings | None = None,
        *,
        clock: Callable[[], float] | None = None,
    ) -> TrainingSession:
        return self._session(workload, settings or ExecutionSettings())


def _tensor(value: Any) -> Any:
    tensor = torch.as_tensor(value)
    return tensor.float() if tensor.is_floating_point() else tensor
