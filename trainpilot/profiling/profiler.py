"""Profiling of a workload: counts of one training step, without running it where that is possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainpilot.errors import ModelError, NothingToTrainError, TrainPilotError
from trainpilot.profiling.copies import ModelCopier, fake_converter, to_meta, to_real
from trainpilot.profiling.features import features_of
from trainpilot.profiling.guard import preserved_random_state
from trainpilot.profiling.profile import WorkloadProfile
from trainpilot.profiling.step import Step, StepError, StepTrace, trace_step
from trainpilot.profiling.structure import ModelStructure, is_lazy_model, structure_of
from trainpilot.workload import ModelInputs, ResolvedWorkload, Workload, map_tensors, signature, tensor_leaves

_AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BATCH_NORM_ERROR = "Expected more than 1 value per channel when training"


def profile_workload(workload: Workload) -> WorkloadProfile:
    """See ``trainpilot.profiling.profile``."""
    with preserved_random_state():
        return _Profiler(workload).run()


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """A trace, and how it came about."""

    trace: StepTrace
    structure: ModelStructure
    inputs: ModelInputs
    batch_size: int


class _Profiler:
    """One run of ``profile``."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._notes: list[str] = []

    def run(self) -> WorkloadProfile:
        resolved = self._workload.resolve()
        model = resolved.model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise NothingToTrainError("nothing to train: no parameter of the model requires a gradient")
        assert self._workload.batch_size is not None
        attempt = self._fake(resolved, model, self._workload.batch_size)
        return self._profile(attempt)

    def _fake(self, resolved: ResolvedWorkload, model: nn.Module, batch_size: int) -> _Attempt:
        inputs, targets = self._batch(resolved, batch_size)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        copier = ModelCopier(fake_converter(mode))
        step = Step(
            model=copier.module(model),
            inputs=copier.structure(inputs),
            targets=copier.structure(targets),
            loss=None if resolved.loss is None else copier.function(resolved.loss),
            optimizer=self._workload.optimizer,
            autocast=_AUTOCAST[self._workload.dtype],
        )
        structure = structure_of(step.model)
        return _Attempt(trace_step(step, structure, mode), structure, inputs, batch_size)

    def _batch(self, resolved: ResolvedWorkload, batch_size: int) -> tuple[ModelInputs, Any]:
        inputs = resolved.make_inputs(batch_size)
        return inputs, None if resolved.make_targets is None else resolved.make_targets(batch_size)

    def _profile(self, attempt: _Attempt) -> WorkloadProfile:
        workload, trace, structure = self._workload, attempt.trace, attempt.structure
        counts = {
            "params": structure.params,
            "trainable_params": structure.trainable_params,
            "param_bytes": structure.param_bytes,
            "batch_size": attempt.batch_size,
            "layers": structure.layers,
            "depth": trace.depth,
        }
        classes = {group.op_class for group in trace.groups}
        return WorkloadProfile(
            name=workload.name,
            family=workload.family,
            workload_hash=workload.workload_hash,
            model_hash=workload.model_hash,
            batch_size=attempt.batch_size,
            dataset_size=workload.dataset_size,
            epochs=workload.epochs,
            optimizer=workload.optimizer_name,
            dtype=workload.dtype if workload.dtype != "float32" else structure.dtype,
            input_signature=tuple(signature(attempt.inputs)),
            params=structure.params,
            trainable_params=structure.trainable_params,
            buffers=structure.buffers,
            param_bytes=structure.param_bytes,
            layers=structure.layers,
            depth=trace.depth,
            has_conv=bool(classes & {"conv", "depthwise_conv"}),
            has_rnn=structure.has_recurrent or "rnn" in classes,
            avg_layer_size=structure.params / structure.layers if structure.layers else 0.0,
            forward_flops=trace.flops("forward", "loss"),
            backward_flops=trace.flops("backward"),
            optimizer_flops=trace.flops("optimizer"),
            uncounted_ops=trace.uncounted,
            data_dependent=False,
            forward_flops_range=None,
            op_groups=trace.groups,
            memory=trace.memory,
            features=features_of(trace.groups, trace.memory, counts, trace.uncounted),
            notes=tuple(self._notes),
        )
