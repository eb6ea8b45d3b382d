"""The workload: which model is trained, on what input, with which loss, optimizer and plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

from trainpilot import zoo
from trainpilot.errors import ModelError, TrainPilotError, UsageError
from trainpilot.workload.identity import digest, function_identity, module_identity
from trainpilot.workload.inputs import InputSpec
from trainpilot.workload.optimizers import OptimizerLike, check_optimizer
from trainpilot.workload.plan import TrainingPlan
from trainpilot.workload.reference import (
    CodeReference,
    is_code_reference,
    load_code_reference,
    split_code_reference,
)
from trainpilot.workload.structure import ModelInputs, batch_size_of, signature, tensor_leaves

if TYPE_CHECKING:
    from torch import nn

DEFAULT_BATCH_SIZE = 32
DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class ResolvedWorkload:
    """The live parts of a workload.

    Attributes:
        model: The user's own module, or one built just now.
        owned: True if ``model`` was built here, so that nobody else holds it.
        make_inputs: Gives the inputs for a batch size.
        make_targets: Gives the targets for a batch size, or None where the workload has none.
        loss: The user's ``loss(outputs, targets)``, or None.
    """

    model: nn.Module
    owned: bool
    make_inputs: Callable[[int], ModelInputs]
    make_targets: Callable[[int], Any] | None
    loss: Callable[[Any, Any], Any] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A model with its input and training plan.

    Args:
        model: A module, a function that builds one, a zoo name, or ``path/file.py:build``.
        example_inputs: ``example_inputs(batch_size)`` or its value: a tensor, a tuple of positional arguments,
            a dict of keyword arguments, or ``ModelInputs`` where both are mixed. Zoo models have their own.
        targets: ``targets(batch_size)`` or its value; optional.
        loss: ``loss(outputs, targets)``; without it the loss is inferred (see ``compute_loss``).
        optimizer: A name (see ``optimizer_names()``) or ``factory(parameters)``.
        batch_size: Samples per micro-batch; default: that of the example inputs, else 32.
        dataset_size: Number of training samples.
        epochs: Passes over the data.
        settings: Settings of a zoo model, or keyword arguments of a builder.
        input_spec: Describes the input of a model that brings none.
        classes: Number of classes of the targets that ``input_spec`` models are trained on.
        accumulate: Micro-batches per optimizer step.
        drop_last: Leave out the last, partial batch.
        validation_size: Samples evaluated after each epoch.
        dtype: ``float32``, or ``bfloat16`` / ``float16`` for autocast to that type.
        learning_rate: Overrides the usual rate of a named optimizer.
        label: What to call the workload; default: the model's name.

    Raises:
        UsageError: A name, setting or count is wrong.
    """

    model: nn.Module | Callable[..., nn.Module] | str
    example_inputs: Any = None
    targets: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    optimizer: OptimizerLike = "adamw"
    batch_size: int | None = None
    dataset_size: int = 50_000
    epochs: int = 10
    _: dataclasses.KW_ONLY
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    input_spec: InputSpec | None = None
    classes: int | None = None
    accumulate: int = 1
    drop_last: bool = False
    validation_size: int = 0
    dtype: str = "float32"
    learning_rate: float | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is None:
            found = None if callable(self.example_inputs) else batch_size_of(self.example_inputs)
            object.__setattr__(self, "batch_size", DEFAULT_BATCH_SIZE if found is None else found)
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: valid are {', '.join(DTYPES)}")
        if self.classes is not None and self.classes < 1:
            raise UsageError(f"classes must be at least 1, got {self.classes}")
        if not isinstance(self.model, str) and not callable(self.model):
            raise UsageError(
                "model must be a module, a function that builds one, a zoo name or path/file.py:build, "
                f"got {self.model!r}"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"learning_rate must be above 0 and finite, got {self.learning_rate}")
        check_optimizer(self.optimizer)
        self._check_fixed_inputs(self.plan.batch_size)
        if isinstance(self.model, str) and is_code_reference(self.model):
            split_code_reference(self.model)
        elif isinstance(self.model, str):
            object.__setattr__(self, "settings", self._entry.resolve_settings(self.settings))

    def _check_fixed_inputs(self, batch_size: int) -> None:
        """Refuse inputs that hold another number of samples than the plan's batch; which dimension counts is free."""
        if self.example_inputs is None or callable(self.example_inputs):
            return
        shapes = [tuple(leaf.shape) for leaf in tensor_leaves(self.example_inputs) if not leaf.is_nested]
        if shapes and not any(batch_size in shape for shape in (*shapes, (batch_size_of(self.example_inputs),))):
            raise UsageError(
                f"example_inputs of shape {shapes[0]} hold no batch of {batch_size}: give example_inputs(batch_size) "
                "as a function, or leave batch_size out"
            )

    @cached_property
    def plan(self) -> TrainingPlan:
        """The arithmetic of the training plan."""
        assert self.batch_size is not None
        return TrainingPlan(
            dataset_size=self.dataset_size,
            batch_size=self.batch_size,
            epochs=self.epochs,
            accumulate=self.accumulate,
            drop_last=self.drop_last,
            validation_size=self.validation_size,
        )

    @property
    def name(self) -> str:
        """What the workload is called."""
        if self.label:
            return self.label
        if isinstance(self.model, str):
            return self.model
        return getattr(self.model, "__name__", type(self.model).__name__)

    @property
    def family(self) -> str:
        """Family of a zoo model; ``custom`` for everything else."""
        return self._entry.family if self._is_zoo else "custom"

    @property
    def optimizer_name(self) -> str:
        """Name of the optimizer."""
        return check_optimizer(self.optimizer)

    @property
    def _is_zoo(self) -> bool:
        return isinstance(self.model, str) and not is_code_reference(self.model)

    @cached_property
    def _entry(self) -> zoo.ModelEntry:
        assert isinstance(self.model, str)
        return zoo.get(self.model)

    @cached_property
    def _reference(self) -> CodeReference:
        assert isinstance(self.model, str)
        return load_code_reference(self.model)

    def resolve(self) -> ResolvedWorkload:
        """Build the model and collect what it is called with.

        Raises:
            ModelError: The builder raises or returns no module, or no inputs are known.
        """
        if self._is_zoo:
            entry, settings = self._entry, self.settings
            return ResolvedWorkload(
                model=entry.build(settings),
                owned=True,
                make_inputs=self._maker(self.example_inputs, lambda n: entry.example_inputs(settings, n)),
                make_targets=self._targets_maker(lambda n: entry.example_targets(settings, n)),
                loss=self.loss,
            )
        reference = self._reference if isinstance(self.model, str) else None
        spec = self.input_spec
        inputs = self.example_inputs
        if inputs is None and reference is not None:
            inputs = reference.example_inputs
        if inputs is None and spec is None:
            raise ModelError(
                f"{self.name}: no inputs are known: give example_inputs(batch_size), or on the command line "
                "--input 3x64x64 or --token-ids 128 --vocab 30000"
            )
        targets = reference.example_targets if reference is not None else None
        if targets is None and spec is not None and self.classes is not None:
            classes = self.classes

            def targets(batch_size: int) -> Any:
                return InputSpec.class_targets(batch_size, classes)

        return ResolvedWorkload(
            model=self._build(),
            owned=not _is_module(self.model),
            make_inputs=self._maker(inputs, spec.example_inputs if spec is not None else None),
            make_targets=self._targets_maker(targets),
            loss=self.loss if self.loss is not None or reference is None else reference.loss,
        )

    def _build(self) -> nn.Module:
        if _is_module(self.model):
            return self.model
        builder = self._reference.build if isinstance(self.model, str) else self.model
        try:
            built = builder(**self.settings)
        except TrainPilotError:
            raise
        except (Exception, SystemExit) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if "missing" in message and "argument" in message:
                message += " (give it with --set NAME=VALUE, or settings={...})"
            raise ModelError(f"{self.name}: the builder raised {message}") from error
        if not _is_module(built):
            raise ModelError(f"{self.name}: the builder must return a torch.nn.Module, got {type(built).__name__}")
        return built

    def _maker(self, given: Any, fallback: Callable[[int], Any] | None) -> Callable[[int], ModelInputs]:
        if given is None:
            assert fallback is not None
            return lambda batch_size: ModelInputs.of(fallback(batch_size))
        if callable(given):
            return lambda batch_size: ModelInputs.of(self._call("example_inputs", given, batch_size))
        return lambda _batch_size: ModelInputs.of(given)

    def _targets_maker(self, fallback: Callable[[int], Any] | None) -> Callable[[int], Any] | None:
        given = self.targets
        if given is None:
            return fallback
        if callable(given):
            return lambda batch_size: self._call("targets", given, batch_size)
        return lambda _batch_size: given

    def _call(self, what: str, function: Callable[[int], Any], batch_size: int) -> Any:
        try:
            return function(batch_size)
        except (Exception, SystemExit) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise ModelError(f"{self.name}: {what}({batch_size}) raised {message}") from error

    @property
    def model_hash(self) -> str:
        """Identity of the model alone; equal for two batch sizes of the same model.

        Found anew each time, since a live module may be changed meanwhile.
        """
        if self._is_zoo:
            return digest(["zoo", self.model, dict(self.settings)])
        if isinstance(self.model, str):
            place, _, function = self.model.rpartition(":")
            return digest(["code", place, function, self._reference.digest, dict(self.settings)])
        if _is_module(self.model):
            return module_identity(self.model)
        return digest(["builder", function_identity(self.model), dict(self.settings)])

    @property
    def workload_hash(self) -> str:
        """Identity of the training step: model, inputs, batch size, loss, optimizer and dtype; not the plan."""
        assert self.batch_size is not None
        if self.example_inputs is None:
            inputs: Any = None if self.input_spec is None else dataclasses.asdict(self.input_spec)
        elif callable(self.example_inputs):
            inputs = function_identity(self.example_inputs)
        else:
            inputs = signature(self.example_inputs)
        targets = function_identity(self.targets) if callable(self.targets) else signature(self.targets)
        loss = None if self.loss is None else function_identity(self.loss)
        # Two functions of one name may make different optimizers.
        optimizer = self.optimizer_name if isinstance(self.optimizer, str) else function_identity(self.optimizer)
        return digest([self.model_hash, inputs, targets, self.classes, loss, optimizer, self.batch_size, self.dtype])

    def to_spec(self) -> dict[str, Any]:
        """Return the workload as JSON, for another process.

        Raises:
            ModelError: The workload holds live objects that no other process can build.
        """
        if not isinstance(self.model, str) or not isinstance(self.optimizer, str):
            raise ModelError(
                f"{self.name}: only a zoo name or a builder in a file can be sent to another process: "
                "give the model as path/file.py:build"
            )
        if self.example_inputs is not None or self.targets is not None or self.loss is not None:
            raise ModelError(f"{self.name}: put example_inputs, example_targets and loss into the file of the builder")
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for live in ("example_inputs", "targets", "loss"):
            del fields[live]
        fields["settings"] = dict(self.settings)
        fields["input_spec"] = None if self.input_spec is None else dataclasses.asdict(self.input_spec)
        return fields

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Workload:
        """Make the workload that ``to_spec`` described.

        Raises:
            UsageError: A field is unknown or wrong.
        """
        fields = dict(spec)
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - known)
        if unknown:
            raise UsageError(f"workload: unknown field {unknown[0]!r}; valid: {', '.join(sorted(known))}")
        if fields.get("input_spec") is not None:
            fields["input_spec"] = InputSpec(**fields["input_spec"])
        return cls(**fields)


def _is_module(value: Any) -> TypeGuard[nn.Module]:
    # torch is imported only if the value can be a module at all: naming a zoo model must stay cheap.
    if value is None or isinstance(value, str | type):
        return False
    from torch import nn

    return isinstance(value, nn.Module)
