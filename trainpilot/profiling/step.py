"""Runs one training step on a copy of the model and counts it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainpilot.errors import ModelError
from trainpilot.profiling.classes import preserved_classes
from trainpilot.profiling.guard import preserved_gradients
from trainpilot.profiling.lengths import SequenceLengths
from trainpilot.profiling.liveness import Liveness
from trainpilot.profiling.optimizer import OptimizerCost, named_optimizer_cost, traced_optimizer_cost
from trainpilot.profiling.result import MemoryEstimate, OpGroup
from trainpilot.profiling.structure import LayerCalls, ModelStructure
from trainpilot.profiling.tracer import Tracer
from trainpilot.workload import ModelInputs, compute_loss, tensor_leaves
from trainpilot.workload.optimizers import OptimizerLike


@dataclass(frozen=True)
class Step:
    """One training step, ready to run; everything in it is a copy that may be changed.

    Attributes:
        model: The model.
        inputs: What it is called with.
        targets: Given to the loss.
        loss: The user's loss, or None to infer one.
        optimizer: Name or factory.
        autocast: Type to cast to, or None.
        name: What messages call the workload.
        made: Tells whether a tensor was made by the copier.
    """

    model: nn.Module
    inputs: ModelInputs
    targets: Any
    loss: Callable[[Any, Any], Any] | None
    optimizer: OptimizerLike
    autocast: torch.dtype | None
    name: str
    made: Callable[[torch.Tensor], bool]

    def is_copy(self, tensor: torch.Tensor) -> bool:
        """True for a tensor that is not the user's: of the copied model, or made by the copier."""
        return self.made(tensor) or any(tensor is parameter for parameter in self.model.parameters())


@dataclass(frozen=True)
class StepTrace:
    """Counts of one step.

    Attributes:
        groups: The table of operations of all phases.
        uncounted: Operators that do arithmetic but have no formula, by calls.
        depth: Calls of layers with parameters in the forward pass.
        memory: Peak memory by part.
        reads_values: The forward pass or the loss looked at values of tensors, other than lengths of sequences.
        backward: False where the loss depended on no parameter, so that there was no backward pass.
    """

    groups: tuple[OpGroup, ...]
    uncounted: dict[str, int]
    depth: int
    memory: MemoryEstimate
    reads_values: bool
    backward: bool

    def flops(self, *phases: str) -> int:
        """FLOPs of the phases."""
        return sum(group.flops for group in self.groups if group.phase in phases)


class StepError(Exception):
    """What the user's code raised, with the phase in which it did.

    Attributes:
        phase: ``forward``, ``loss``, ``backward`` or ``optimizer``.
        error: What was raised.
    """

    def __init__(self, phase: str, error: Exception) -> None:
        super().__init__(phase, error)
        self.phase = phase
        self.error = error


def trace_step(
    step: Step,
    structure: ModelStructure,
    mode: AbstractContextManager[Any],
    require_backward: bool = True,
    lengths: SequenceLengths | None = None,
) -> StepTrace:
    """Run forward, loss, backward and optimizer of ``step`` and count them.

    Args:
        step: What to run.
        structure: Counts of the model.
        mode: Active while the step runs: the mode of its fake tensors, or a null context for real ones.
        require_backward: Refuse a loss that depends on no parameter.
        lengths: Tells lengths of sequences from other values.

    Raises:
        StepError: Something in the step raised.
        ModelError: The loss depends on no parameter, and ``require_backward``.
    """
    liveness = Liveness()
    tracer = Tracer(liveness, lengths=lengths)
    liveness.ignore((*step.model.parameters(), *step.model.buffers()))
    liveness.add((*tensor_leaves(step.inputs), *tensor_leaves(step.targets)))
    calls = LayerCalls()
    autocast = torch.autocast("cpu", dtype=step.autocast or torch.bfloat16, enabled=step.autocast is not None)
    classes = preserved_classes(step.model, (step.loss, step.optimizer))
    with classes, _phase_of_errors(tracer), _silent_torch(), mode:
        with tracer, autocast:
            with calls.counting(step.model):
                outputs = step.model(*step.inputs.args, **step.inputs.kwargs)
            tracer.phase = "loss"
            loss = compute_loss(outputs, step.targets, step.loss)
        reads_values = tracer.reads_values
        tracer.phase = "backward"
        if loss.requires_grad:
            with tracer, preserved_gradients([loss], step.is_copy):
                torch.autograd.backward(loss)
        elif require_backward:
            raise ModelError(
                f"{step.name}: the loss does not depend on any trainable parameter or input, so it has no gradient"
            )
    trained = [parameter for parameter in step.model.parameters() if parameter.grad is not None]
    peaks = liveness.peaks(parameter.grad for parameter in trained if parameter.grad is not None)
    tracer.phase = "optimizer"
    with _phase_of_errors(tracer), _silent_torch():
        optimizer = _optimizer_cost(step, trained, mode)
    memory = MemoryEstimate(
        weights_bytes=structure.param_bytes,
        buffers_bytes=structure.buffer_bytes,
        gradients_bytes=peaks.kept_bytes,
        optimizer_bytes=optimizer.state_bytes,
        activations_bytes=peaks.others_bytes,
        workspace_bytes=max(peaks.workspace_bytes, optimizer.temporary_bytes),
        peak_bytes=structure.param_bytes
        + structure.buffer_bytes
        + optimizer.state_bytes
        + max(peaks.total_bytes, peaks.end_bytes + optimizer.temporary_bytes),
    )
    uncounted = tracer.uncounted()
    for name, number in optimizer.uncounted.items():
        uncounted[name] = uncounted.get(name, 0) + number
    return StepTrace(
        groups=(*tracer.groups(), *optimizer.groups),
        uncounted=uncounted,
        depth=calls.depth,
        memory=memory,
        reads_values=reads_values,
        backward=loss.requires_grad,
    )


def forward_flops(step: Step, limit: int) -> int | None:
    """FLOPs of forward pass and loss, or None if they raise or dispatch more than ``limit`` operators."""
    tracer = Tracer(limit=limit)
    autocast = torch.autocast("cpu", dtype=step.autocast or torch.bfloat16, enabled=step.autocast is not None)
    try:
        with preserved_classes(step.model, (step.loss,)), _silent_torch(), tracer, autocast:
            compute_loss(step.model(*step.inputs.args, **step.inputs.kwargs), step.targets, step.loss)
    except Exception:  # noqa: BLE001 - an input that the model does not accept tells nothing
        return None
    return sum(group.flops for group in tracer.groups())


def _optimizer_cost(step: Step, trained: list[nn.Parameter], mode: AbstractContextManager[Any]) -> OptimizerCost:
    if not trained:
        return OptimizerCost((), {}, 0, 0)
    sparse = any(parameter.grad is not None and parameter.grad.layout != torch.strided for parameter in trained)
    if isinstance(step.optimizer, str) and not sparse:
        return named_optimizer_cost(step.optimizer, trained)
    try:
        with mode:
            return traced_optimizer_cost(step.optimizer, step.model, step.is_copy)
    except TypeError as error:
        if "closure" not in str(error):
            raise
        raise ModelError(
            f"{step.name}: an optimizer whose step needs a closure, as LBFGS does, repeats the forward pass as often "
            "as it likes and cannot be profiled"
        ) from error


@contextmanager
def _silent_torch() -> Iterator[None]:
    """PyTorch warns of how a model runs (hooks, checkpoints, slow kernels); that is for training it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch(\.|$)")
        yield


@contextmanager
def _phase_of_errors(tracer: Tracer) -> Iterator[None]:
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise StepError(tracer.phase, error) from error
