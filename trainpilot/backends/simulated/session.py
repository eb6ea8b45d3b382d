"""A session of the simulated device."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from trainpilot.backends.base import ExecutionSettings, TrainingSession
from trainpilot.backends.simulated.clock import VirtualClock
from trainpilot.backends.simulated.device import SimulatedDevice
from trainpilot.backends.torch_device.global_state import GlobalState
from trainpilot.backends.torch_device.placing import EvaluationMode, own_model, separate_copy, to_device
from trainpilot.errors import BackendError, UsageError
from trainpilot.workload import ModelInputs, Workload, batch_size_of, build_optimizer, map_tensors

if TYPE_CHECKING:
    import torch

_FIRST_LOSS = 2.0
_LOSS_DECAY = 0.9


class SimulatedSession(TrainingSession):
    """Advances a virtual clock by the time of each step.

    A step does not train: its loss is ``2 * 0.9**n`` at step n. The model is real, so ``forward`` gives its real
    outputs, and the clock advances by the simulated time.

    Args:
        workload: What to train.
        device: Figures of the device.
        settings: Execution settings.
        clock: The clock to advance.
        noise: Standard deviation of the logarithm of a factor on each step's time.
        seed: Seed of the noise.

    Attributes:
        model: The session's own model.
        clock: The clock.
        settings: The execution settings with the thread count filled in.

    Raises:
        ModelError: The model cannot be built or has nothing to train.
    """

    def __init__(
        self,
        workload: Workload,
        device: SimulatedDevice,
        settings: ExecutionSettings,
        clock: VirtualClock,
        *,
        noise: float,
        seed: int,
    ) -> None:

        from trainpilot.profiling import profile

        self.clock = clock
        threads = settings.threads or 1
        self.settings = ExecutionSettings(threads, settings.dtype, settings.memory_format)
        self._noise, self._random = noise, random.Random(seed)
        self._steps = 0
        self._closed = False
        assert workload.batch_size is not None
        self._batch_size = workload.batch_size
        state = GlobalState("cpu")
        try:
            state.seed()
            parts = workload.resolve()
            example = parts.make_inputs(workload.batch_size)
            self.model = own_model(workload, parts, example).to("cpu")
            self._example: ModelInputs = map_tensors(separate_copy, example)
            build_optimizer(workload.optimizer, self.model, workload.learning_rate)  # refuses what cannot be trained
            found = profile(workload)
        finally:
            state.restore()
        self._device, self._features = device, found.features
        self._peak_bytes = found.memory.peak_bytes
        clock.advance(device.setup_time_s(found.param_bytes))

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor:
        """Advance the clock by one training step, the first three times as long; see the class for the loss."""
        import torch

        self._require_open()
        if inputs is None and targets is not None:
            raise UsageError("targets were given without inputs")
        seconds = self._device.step_s(self._features, *self._setting(), share=self._share(self._batch(inputs)))
        if self._steps == 0:
            seconds = self._device.first_step_s(seconds)
        self._advance(seconds)
        loss = _FIRST_LOSS * _LOSS_DECAY**self._steps
        self._steps += 1
        return torch.tensor(loss)

    def forward(self, inputs: Any = None) -> Any:
        """Run the model on the CPU and advance the clock by the simulated time."""
        import torch

        self._require_open()
        batch = self._batch(inputs)
        copied = map_tensors(separate_copy, batch)
        with EvaluationMode(self.model), torch.no_grad():
            outputs = self.model(*copied.args, **copied.kwargs)
        self._advance(self._device.forward_s(self._features, *self._setting(), share=self._share(batch)))
        return outputs

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def peak_memory_bytes(self) -> int | None:
        """The peak that the profile estimates: the simulated device holds exactly that, or None before a step."""
        return self._peak_bytes if self._steps else None

    def placement(self) -> str:
        """``simulated``."""
        return "simulated"

    def state_dict(self) -> dict[str, Any]:
        """Weights and buffers as copies; they are those of the start."""
        return map_tensors(lambda tensor: tensor.detach().clone(), dict(self.model.state_dict()))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the session; may be called twice."""
        self._closed = True
        self.__dict__.pop("model", None)

    def _setting(self) -> tuple[int, str]:
        assert self.settings.threads is not None
        return self.settings.threads, self.settings.dtype

    def _batch(self, inputs: Any) -> ModelInputs:
        import torch

        if inputs is None:
            return self._example
        batch: ModelInputs = to_device(
            ModelInputs.of(inputs), torch.device("cpu"), torch.contiguous_format, torch.get_default_dtype()
        )
        return batch

    def _share(self, batch: ModelInputs) -> float:
        """Size of a batch over that of the profiled one."""
        size = batch_size_of(batch)
        return 1.0 if size is None else size / self._batch_size

    def _advance(self, seconds: float) -> None:
        factor = self._random.lognormvariate(0.0, self._noise) if self._noise else 1.0
        self.clock.advance(seconds * factor)

    def _require_open(self) -> None:
        if self._closed:
            raise BackendError("the session is closed")
