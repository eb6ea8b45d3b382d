"""A model on a PyTorch device, ready to run steps."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainpilot.backends.base import ExecutionSettings, TrainingSession
from trainpilot.backends.torch_device.global_state import GlobalState
from trainpilot.backends.torch_device.peak_memory import watch_peak_memory
from trainpilot.backends.torch_device.placing import (
    EvaluationMode,
    own_model,
    separate_copy,
    tensor_versions,
    to_device,
)
from trainpilot.errors import BackendError, UnsupportedError, UsageError
from trainpilot.workload import ModelInputs, Workload, build_optimizer, compute_loss, map_tensors

if TYPE_CHECKING:
    import torch

# How PyTorch says that a kernel does not exist for a dtype or device.
_NO_KERNEL = ("not implemented for", "not currently implemented for", "Could not run 'aten::")


class TorchSession(TrainingSession):
    """Runs training steps on one device.

    While the session is open it owns the process's thread count and random state; both are seeded or set when it
    is made, so that two sessions of the same workload run the same steps, and restored when it is closed. Sessions
    that are open at the same time are closed in reverse order.

    The model trains in the modes (train or eval) in which its submodules were given. float16 uses a gradient
    scaler, as training in that type needs one; its step waits for the device once.

    Args:
        workload: What to train.
        device_type: ``cpu``, ``cuda``, ``mps`` or ``xpu``.
        settings: Execution settings with the thread count filled in.

    Attributes:
        model: The session's own model.
        optimizer: Its optimizer.
        settings: The execution settings.

    Raises:
        ModelError: The model cannot be built or has nothing to train.
    """

    def __init__(self, workload: Workload, device_type: str, settings: ExecutionSettings) -> None:
        import torch

        _load_optimizer_code()
        self.settings = settings
        self._device = torch.device(device_type) if device_type == "cpu" else torch.device(device_type, 0)
        self._closed = False
        self._state = GlobalState(device_type)
        try:
            self._state.seed()
            assert settings.threads is not None
            torch.set_num_threads(settings.threads)
            self._memory = watch_peak_memory(device_type)
            self._build(workload)
        except BaseException:
            self.close()
            raise

    def step(self, inputs: Any = None, targets: Any = None) -> torch.Tensor:
        """Run one training step; see ``TrainingSession.step``.

        Args:
            inputs: One batch, as arrays or tensors in the workload's input convention; None: the example batch.
            targets: Its targets.

        Raises:
            UnsupportedError: An operator has no kernel for the dtype on this device.
            UsageError: Targets without inputs.
            BackendError: The session is closed.
        """
        import torch

        batch, wanted = self._batch(inputs, targets)
        with torch.enable_grad(), _naming_missing_kernels():
            self.optimizer.zero_grad(set_to_none=True)
            with self._autocast():
                loss = compute_loss(self._call(batch), wanted, self._loss)
            if self._scaler is None:
                torch.autograd.backward(loss)
                self.optimizer.step()
            else:
                self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                self._scaler.step(self.optimizer)
                self._scaler.update()
        return loss.detach()

    def forward(self, inputs: Any = None) -> Any:
        """Run one forward pass in evaluation mode; see ``TrainingSession.forward``.

        Raises:
            UnsupportedError: An operator has no kernel for the dtype on this device.
            BackendError: The session is closed.
        """
        import torch

        batch, _ = self._batch(inputs, None)
        with EvaluationMode(self.model), torch.no_grad(), _naming_missing_kernels(), self._autocast():
            outputs = self._call(batch)
        return map_tensors(lambda tensor: tensor.detach().cpu(), outputs)

    def synchronize(self) -> None:
        """Wait for the device; the CPU is never behind."""
        if self._device.type != "cpu":
            import torch

            torch.accelerator.synchronize(self._device)

    def peak_memory_bytes(self) -> int | None:
        """Peak memory above what was in use before the session was made; None where it cannot be known.

        Weights, gradients, optimizer state and activations are all in it.
        """
        return self._memory.peak_bytes()

    def placement(self) -> str:
        """The device of the weights; says so where PyTorch may silently fall back to the CPU."""
        place = str(next(self.model.parameters()).device)
        fallback = self._device.type == "mps" and os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK") == "1"
        return f"{place} with cpu fallback" if fallback else place

    def state_dict(self) -> dict[str, Any]:
        """Weights and buffers as copies on the CPU."""
        return {name: _on_cpu(value) for name, value in self.model.state_dict().items()}

    def close(self) -> None:
        """Free the device and restore threads and random state; may be called twice."""
        if self._closed:
            return
        self._closed = True
        for name in ("model", "optimizer", "_example", "_example_targets", "_scaler"):
            self.__dict__.pop(name, None)
        try:
            if self._device.type in ("cuda", "mps", "xpu"):
                import torch

                torch.accelerator.empty_cache()
        finally:
            self._state.restore()

    def _build(self, workload: Workload) -> None:
        import torch

        assert workload.batch_size is not None
        parts = workload.resolve()
        example = parts.make_inputs(workload.batch_size)
        targets = None if parts.make_targets is None else parts.make_targets(workload.batch_size)
        channels_last = self.settings.memory_format == "channels_last"
        self._layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = own_model(workload, parts, example).to(self._device)
        if channels_last:
            if any(parameter.ndim == 5 for parameter in self.model.parameters()):
                raise UnsupportedError(f"{workload.name}: channels_last does not exist for 3-D convolutions")
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = build_optimizer(workload.optimizer, self.model, workload.learning_rate)
        self._floating = next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)
        self._loss = parts.loss
        self._scaler = torch.amp.GradScaler(self._device.type) if self.settings.dtype == "float16" else None
        # Copies: the user's own tensors must not change when the model works on its input in place.
        self._example = map_tensors(separate_copy, self._moved(example))
        self._example_targets = self._moved(targets)
        self._mutates_inputs: bool | None = None

    def _moved(self, value: Any) -> Any:
        return to_device(value, self._device, self._layout, self._floating)

    def _batch(self, inputs: Any, targets: Any) -> tuple[ModelInputs, Any]:
        if self._closed:
            raise BackendError("the session is closed")
        if inputs is None:
            if targets is not None:
                raise UsageError("targets were given without inputs")
            return self._example, self._example_targets
        return self._moved(ModelInputs.of(inputs)), self._moved(targets)

    def _call(self, batch: ModelInputs) -> Any:
        """Call the model so that the batch is the same afterwards."""
        import torch

        if self._mutates_inputs is False:
            return self.model(*batch.args, **batch.kwargs)
        copied = map_tensors(torch.clone, batch)
        if self._mutates_inputs:
            return self.model(*copied.args, **copied.kwargs)
        # The first call tells whether copies are needed: each step would pay for them.
        before = tensor_versions(copied)
        outputs = self.model(*copied.args, **copied.kwargs)
        self._mutates_inputs = tensor_versions(copied) != before
        return outputs

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        import torch

        if self.settings.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=getattr(torch, self.settings.dtype))


@contextlib.contextmanager
def _naming_missing_kernels() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if any(text in str(error) for text in _NO_KERNEL):
            raise UnsupportedError(str(error).strip().splitlines()[0]) from error
        raise


@lru_cache(maxsize=1)
def _load_optimizer_code() -> None:
    """Make torch load what it loads at the first optimizer step, which would else count as the session's memory."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter]).step()


def _on_cpu(value: Any) -> Any:
    import torch

    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
