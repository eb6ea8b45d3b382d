"""Profiling of a workload: counts of one training step, without running it where that is possible."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from trainpilot.errors import ModelError, NothingToTrainError
from trainpilot.profiling.building import refuse_quantised, refuse_uninitialised, resolve
from trainpilot.profiling.cache import ProfileCache, cache_key
from trainpilot.profiling.classes import preserved_classes
from trainpilot.profiling.copies import ModelCopier, fake_converter, to_meta, to_real
from trainpilot.profiling.features import features_of
from trainpilot.profiling.guard import tracing_state
from trainpilot.profiling.lengths import PACKING, SequenceLengths, ValueReads
from trainpilot.profiling.operators import kind_of
from trainpilot.profiling.randomness import continue_from, random_state
from trainpilot.profiling.result import Phase, WorkloadProfile
from trainpilot.profiling.step import Step, StepError, StepTrace, forward_flops, trace_step
from trainpilot.profiling.structure import ModelStructure, is_lazy_model, structure_of, unwrap
from trainpilot.profiling.workspace import has_measured_kernels
from trainpilot.workload import (
    ModelInputs,
    ResolvedWorkload,
    Workload,
    batch_size_of,
    map_tensors,
    signature,
    tensor_leaves,
)

_AUTOCAST = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
_BATCH_NORM_ERROR = "Expected more than 1 value per channel when training"
# A model whose control flow reads values is tried with its floating-point inputs changed in these ways as well:
# much smaller, much larger, and all of one sign.
_INPUT_CHANGES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda leaf: leaf * 1e-6,
    lambda leaf: leaf * 1e6,
    torch.abs,
    lambda leaf: -leaf.abs(),
)
_VALUE_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
# A changed input may keep a loop going for ever: stop after this many times the operators of the given input.
_MOST_REPEATED = 50
_RANDOM_DRAWS = 3
_HIGHER_ORDER = re.compile(r"no rule registered for HigherOrderOperator (\w+)")
_CONVOLUTIONS = {"aten.convolution", "aten.convolution_backward"}
_FORWARD: tuple[Phase, ...] = ("forward", "loss")

_cache = ProfileCache()


def profile_workload(workload: Workload) -> WorkloadProfile:
    """See ``trainpilot.profiling.profile``; the second time it is answered from a cache."""
    key = cache_key(workload)
    profile = None if key is None else _cache.get(key)
    if profile is None:
        with tracing_state(), torch.inference_mode(False), torch.enable_grad():
            profiler = _Profiler(workload)
            profile = profiler.run()
        if key is not None and profiler.lasting:
            _cache.put(key, profile)
    notes = profile.notes
    if workload.accumulate > 1:
        notes += (
            "the peak is that of one micro-batch with the optimizer step; gradients that are kept from earlier ones "
            f"add at most {profile.memory.gradients_bytes:,} bytes",
        )
    # The plan and the label are not part of what was traced.
    return dataclasses.replace(
        profile, name=workload.name, dataset_size=workload.dataset_size, epochs=workload.epochs, notes=notes
    )


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """A trace, and how it came about.

    Attributes:
        trace: The counts.
        structure: Counts of the model.
        inputs: The inputs that were traced.
        flops_range: Least and most FLOPs of forward pass and loss over scales and signs of the input, if the model
            depends on data, or over draws, if it draws from a random generator of Python or numpy.
    """

    trace: StepTrace
    structure: ModelStructure
    inputs: ModelInputs
    flops_range: tuple[int, int] | None = None


class _Profiler:
    """One run of ``profile``.

    Attributes:
        lasting: The counts hold for other values of the same inputs.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.lasting = True
        self._notes: list[str] = []
        self._resolved: ResolvedWorkload | None = None

    def run(self) -> WorkloadProfile:
        workload = self._workload
        given = workload.model
        if isinstance(given, nn.Module):
            refuse_uninitialised(workload.name, given)
        if isinstance(given, nn.Module) and workload.example_inputs is None and workload.input_spec is None:
            self._refuse_lazy_without_inputs(unwrap(given))
        self._resolved = resolve(workload)
        refuse_uninitialised(workload.name, self._resolved.model)
        model = unwrap(self._resolved.model)
        refuse_quantised(workload.name, model)
        assert workload.batch_size is not None
        inputs, targets = self._batch(workload.batch_size)
        self._check_batch(inputs)
        self._refuse_nothing_to_train(model, inputs)
        try:
            return self._profile(self._attempt(model, inputs, targets), workload.batch_size)
        except StepError as failure:
            # The batch need not be the first dimension of the first tensor.
            if 1 not in (batch_size_of(inputs), workload.batch_size) or not _is_batch_norm_error(failure.error):
                raise self._explained(failure) from failure.error
            reason = "BatchNorm needs batch >= 2 in train mode"
            if batch_size_of(inputs) != 1 and not callable(workload.example_inputs):
                raise ModelError(
                    f"{workload.name}: {reason}: give inputs of two samples, or example_inputs(batch_size) as a "
                    "function"
                ) from failure.error
        self._notes.append(f"{reason}: profiled at batch size 2 instead of 1")
        try:
            return self._profile(self._attempt(model, *self._two_samples()), 2)
        except StepError as failure:
            raise ModelError(f"{workload.name}: {reason}; at batch size 2 {_told(failure)}") from failure.error

    def _refuse_lazy_without_inputs(self, model: nn.Module) -> None:
        if is_lazy_model(model):
            raise ModelError(f"{self._workload.name}: the model is lazy, give a sample input (example_inputs)")

    def _refuse_nothing_to_train(self, model: nn.Module, inputs: ModelInputs) -> None:
        parameters = list(model.parameters())
        if any(parameter.requires_grad for parameter in parameters):
            return
        # A function without parameters can still be differentiated by its inputs.
        if parameters or not any(leaf.requires_grad for leaf in tensor_leaves(inputs)):
            raise NothingToTrainError(
                f"{self._workload.name}: nothing to train: no parameter of the model requires a gradient"
            )

    def _check_batch(self, inputs: ModelInputs) -> None:
        """Refuse nested tensors, and inputs of another batch size than the plan's, whose price they would get."""
        if any(leaf.is_nested for leaf in tensor_leaves(inputs)):
            raise ModelError(
                f"{self._workload.name}: the inputs hold a nested tensor, whose operators have no counts: give a "
                "padded tensor with its mask or lengths, or a PackedSequence"
            )
        wanted = self._workload.plan.batch_size
        shapes = [tuple(leaf.shape) for leaf in tensor_leaves(inputs)]
        if shapes and not any(wanted in shape for shape in (*shapes, (batch_size_of(inputs),))):
            raise ModelError(
                f"{self._workload.name}: example_inputs({wanted}) gave {shapes[0]}, which holds no batch of {wanted}: "
                "make it follow its argument, or give the inputs themselves and leave batch_size out"
            )

    def _batch(self, batch_size: int) -> tuple[ModelInputs, Any]:
        assert self._resolved is not None
        make_targets = self._resolved.make_targets
        try:
            targets = None if make_targets is None else make_targets(batch_size)
            return self._resolved.make_inputs(batch_size), targets
        except (RuntimeError, TypeError, MemoryError) as error:  # no memory for them, or sizes that no tensor has
            reason = str(error).partition("\n")[0]
            raise ModelError(f"{self._workload.name}: a batch of {batch_size} cannot be made: {reason}") from error

    def _two_samples(self) -> tuple[ModelInputs, Any]:
        inputs, targets = self._batch(2)
        if batch_size_of(inputs) == 1:  # fixed example inputs of one sample: take that twice
            inputs, targets = map_tensors(_doubled, inputs), map_tensors(_doubled, targets)
        return inputs, targets

    def _attempt(self, model: nn.Module, inputs: ModelInputs, targets: Any) -> _Attempt:
        """Trace on fake tensors, or on real ones if values are needed."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
            return self._real(model, inputs, targets, None)
        try:
            return self._fake(model, inputs, targets)
        except StepError as failure:
            if _is_batch_norm_error(failure.error):
                raise
            return self._real(model, inputs, targets, failure)

    def _fake(self, model: nn.Module, inputs: ModelInputs, targets: Any) -> _Attempt:
        if is_lazy_model(model):
            model = _materialised(ModelCopier(to_meta), model, inputs)
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        copier = ModelCopier(fake_converter(mode))
        try:
            step = self._step(copier, model, inputs, targets)
        except UnsupportedFakeTensorException as error:
            raise StepError("forward", error) from error
        structure = structure_of(step.model)
        before = random_state(copier.generators)
        trace = trace_step(step, structure, mode)
        if random_state(copier.generators) == before:
            return _Attempt(trace, structure, inputs)

        def again(step: Step) -> StepTrace:
            return trace_step(step, structure, mode)

        return _Attempt(trace, structure, inputs, self._range_of_draws(trace, copier, (model, inputs, targets), again))

    def _real(self, model: nn.Module, inputs: ModelInputs, targets: Any, failure: StepError | None) -> _Attempt:
        """Run once on real copies; ``failure`` is what the fake run ended with."""
        model = self._with_values(model, inputs, failure)
        if is_lazy_model(model):
            model = _materialised(ModelCopier(to_real), model, inputs)
        copier = ModelCopier(to_real)
        step = self._step(copier, model, inputs, targets)
        structure = structure_of(step.model)
        before = random_state(copier.generators)
        lengths = SequenceLengths(step.inputs, step.targets)
        reads = ValueReads(lengths)
        # Watching for reads switches fused paths of PyTorch off, so only where they decide.
        watches = failure is not None and isinstance(failure.error, _VALUE_ERRORS)
        trace = trace_step(step, structure, reads if watches else nullcontext(), False, lengths)
        drawn = random_state(copier.generators) != before
        if not trace.backward:
            self._notes.append("on this input the loss depends on no parameter, so there is no backward pass")
        unsupported = failure is None or _is_unsupported(failure.error)
        unsupported |= failure is not None and failure.phase == "optimizer"
        if unsupported and not trace.reads_values and not reads.found:
            self._notes.append("run on real tensors: an operator has no shape-only form")
            if lengths.given:
                self.lasting = False
                self._notes.append(
                    "lengths of sequences are taken from a tensor in the inputs: the counts are those of these lengths"
                )
            if not drawn:
                return _Attempt(trace, structure, inputs)

            def again(step: Step) -> StepTrace:
                return trace_step(step, structure, nullcontext(), require_backward=False)

            draws = self._range_of_draws(trace, copier, (model, inputs, targets), again)
            return _Attempt(trace, structure, inputs, draws)
        self._notes.append(
            "the control flow or a shape depends on values of tensors: run on real ones, and the counts are those of "
            "the given input"
        )
        return _Attempt(trace, structure, inputs, self._flops_range((model, inputs, targets), trace))

    def _range_of_draws(
        self,
        trace: StepTrace,
        copier: ModelCopier,
        parts: tuple[nn.Module, ModelInputs, Any],
        again: Callable[[Step], StepTrace],
    ) -> tuple[int, int]:
        """Least and most FLOPs of forward pass and loss over draws from random generators of Python or numpy.

        A branch on such a number leaves no trace, so only further draws tell whether the work depends on it.

        Args:
            trace: The step as it was counted.
            copier: Made the copies for it; their generators are where that step left them.
            parts: Model, inputs and targets.
            again: Traces a step.
        """
        seen = [trace.flops(*_FORWARD)]
        for _ in range(_RANDOM_DRAWS):
            before, copier = copier, copier.fresh()
            step = self._step(copier, *parts)
            continue_from(copier.generators, before.generators)
            seen.append(again(step).flops(*_FORWARD))
        self._notes.append(
            "the step draws from a random generator of Python or numpy: the counts are those of one draw, and the "
            f"range is that of {len(seen)}"
        )
        return min(seen), max(seen)

    def _with_values(self, model: nn.Module, inputs: ModelInputs, failure: StepError | None) -> nn.Module:
        """A model and inputs with values; builders are asked again where the model was built without memory."""
        if any(leaf.is_meta for leaf in tensor_leaves(inputs)):
            raise self._without_values(failure)
        if not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            return model
        if isinstance(self._workload.model, nn.Module):
            raise self._without_values(failure)
        return unwrap(resolve(self._workload, real=True).model)

    def _without_values(self, failure: StepError | None) -> ModelError:
        told = f": {_told(failure)}" if failure is not None else ""
        return ModelError(
            f"{self._workload.name}: the step needs values, but the model or its inputs are on the meta device{told}"
        )

    def _flops_range(self, parts: tuple[nn.Module, ModelInputs, Any], trace: StepTrace) -> tuple[int, int]:
        model, inputs, targets = parts
        seen = [trace.flops(*_FORWARD)]
        limit = _MOST_REPEATED * sum(group.calls for group in trace.groups if group.phase in _FORWARD) + 10_000
        for change in _INPUT_CHANGES:
            copier = ModelCopier(to_real)
            changed = map_tensors(functools.partial(_changed, change=change), inputs)
            flops = forward_flops(self._step(copier, model, changed, targets), limit)
            if flops is not None:
                seen.append(flops)
        return min(seen), max(seen)

    def _step(self, copier: ModelCopier, model: nn.Module, inputs: ModelInputs, targets: Any) -> Step:
        assert self._resolved is not None
        loss = self._resolved.loss
        return Step(
            model=copier.module(model),
            inputs=copier.inputs(inputs),
            targets=copier.value(targets),
            loss=None if loss is None else copier.value(loss),
            optimizer=copier.value(self._workload.optimizer),
            autocast=_AUTOCAST[self._workload.dtype],
            name=self._workload.name,
            made=copier.made,
        )

    def _explained(self, failure: StepError) -> ModelError:
        return ModelError(f"{self._workload.name}: {_told(failure)}")

    def _profile(self, attempt: _Attempt, batch_size: int) -> WorkloadProfile:
        workload, trace, structure = self._workload, attempt.trace, attempt.structure
        counts = {
            "params": structure.params,
            "trainable_params": structure.trainable_params,
            "param_bytes": structure.param_bytes,
            "batch_size": batch_size,
            "layers": structure.layers,
            "depth": trace.depth,
        }
        classes = {group.op_class for group in trace.groups}
        return WorkloadProfile(
            name=workload.name,
            family=workload.family,
            workload_hash=workload.workload_hash,
            model_hash=workload.model_hash,
            batch_size=batch_size,
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
            forward_flops=trace.flops(*_FORWARD),
            backward_flops=trace.flops("backward"),
            optimizer_flops=trace.flops("optimizer"),
            uncounted_ops=trace.uncounted,
            data_dependent=attempt.flops_range is not None,
            forward_flops_range=attempt.flops_range,
            op_groups=trace.groups,
            memory=trace.memory,
            features=features_of(trace.groups, trace.memory, counts, trace.uncounted),
            notes=(*self._notes, *_notes_on(trace)),
        )


def _materialised(copier: ModelCopier, model: nn.Module, inputs: ModelInputs) -> nn.Module:
    """A copy of a lazy model whose parameters got their shapes from one forward pass."""
    copied = copier.module(model)
    batch = copier.inputs(inputs)
    try:
        with preserved_classes(copied), torch.no_grad():
            copied(*batch.args, **batch.kwargs)
    except Exception as error:
        raise StepError("forward", error) from error
    return copied


def _notes_on(trace: StepTrace) -> Iterator[str]:
    ops = {group.op for group in trace.groups}
    if trace.uncounted:
        told = ", ".join(f"{name} ({calls}x)" for name, calls in sorted(trace.uncounted.items()))
        yield f"FLOPs are a lower bound: no formula for {told}"
    if "aten._scaled_dot_product_flash_attention_for_cpu_backward" in ops:
        yield "the backward pass of fused attention recomputes the scores: 5 matrix products (2.5 x forward)"
    if "aten.mkldnn_rnn_layer_backward" in ops:
        yield "the backward pass of a fused recurrent layer computes all gradients, needed or not (2 x forward)"

    if ops & _CONVOLUTIONS and not has_measured_kernels():
        yield (
            "workspace of convolutions: assumed, with direct kernels for all of them; measured with AVX2 only, and "
            f"this processor runs {torch.backends.cpu.get_cpu_capability()}"
        )


def _told(failure: StepError) -> str:
    operator = _HIGHER_ORDER.search(str(failure.error))
    if operator is not None:
        return (
            f"{failure.phase} uses torch's operator {operator[1]}, whose body a trace does not see: write it as an "
            "if or a loop of Python"
        )
    return " ".join(f"{failure.phase} raised {type(failure.error).__name__}: {failure.error}".split())


def _is_unsupported(error: Exception) -> bool:
    """True if a run on real tensors tells whether the step depends on values: it dispatches what failed again."""
    if isinstance(error, _VALUE_ERRORS):
        kind = kind_of(error.func)
        return kind.base == PACKING or not kind.stable
    return isinstance(error, UnsupportedOperatorException | UnsupportedFakeTensorException | NotImplementedError)


def _is_batch_norm_error(error: Exception) -> bool:
    return isinstance(error, ValueError) and _BATCH_NORM_ERROR in str(error)


def _doubled(leaf: torch.Tensor) -> torch.Tensor:
    if leaf.ndim == 0 or leaf.shape[0] != 1:
        return leaf
    return leaf.detach().repeat(2, *[1] * (leaf.ndim - 1)).requires_grad_(leaf.requires_grad)


def _changed(leaf: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return change(leaf.detach()) if leaf.is_floating_point() else leaf
