"""What the zoo knows about one model: its settings, its inputs and targets, and where its builder is."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from trainpilot.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

Settings = Mapping[str, Any]
SettingKind = Literal["int", "float", "bool", "choice"]
TargetKind = Literal["class", "class_per_position", "float", "none"]


@dataclass(frozen=True)
class Setting:
    """One setting of a model.

    Attributes:
        default: Value where none is given.
        kind: ``int``, ``float``, ``bool``, or ``choice`` (one of ``choices``).
        minimum: Least value of a number.
        maximum: Largest value of a number.
        help: What it means, in one line.
        choices: Valid values of a ``choice``; texts or whole numbers.
    """

    default: Any
    kind: SettingKind
    minimum: float | None = None
    maximum: float | None = None
    help: str = ""
    choices: tuple[str | int, ...] = ()

    def describe(self) -> str:
        """The valid values, in words."""
        if self.kind == "choice":
            return f"one of {', '.join(str(choice) for choice in self.choices)}"
        if self.kind == "bool":
            return "true or false"
        noun = "a whole number" if self.kind == "int" else "a number"
        return f"{noun} from {self.minimum} to {self.maximum}"

    def accepts(self, value: Any) -> bool:
        """True if ``value`` has the right kind and lies in the range; a bool is never a number."""
        if self.kind == "choice":
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if self.kind == "bool":
            return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else int | float):
            return False
        if not math.isfinite(value):
            return False
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


def integer(default: int, minimum: int, maximum: int, text: str) -> Setting:
    """A whole-number setting."""
    return Setting(default, "int", minimum, maximum, text)


def real(default: float, minimum: float, maximum: float, text: str) -> Setting:
    """A setting that is any number in a range."""
    return Setting(default, "float", minimum, maximum, text)


def flag(default: bool, text: str) -> Setting:
    """A setting that is on or off."""
    return Setting(default, "bool", help=text)


def choice(default: str | int, choices: tuple[str | int, ...], text: str) -> Setting:
    """A setting that takes one of some values."""
    return Setting(default, "choice", help=text, choices=choices)


@dataclass(frozen=True)
class Input:
    """One positional argument of a model.

    Attributes:
        shape: Shape of one sample for given settings.
        ids: Name of the setting that tells how many different ids there are; None for float inputs.
    """

    shape: Callable[[Settings], tuple[int, ...]]
    ids: str | None = None


@dataclass(frozen=True)
class Target:
    """What a model is trained on.

    Attributes:
        kind: ``class`` (one label a sample), ``class_per_position`` (a label for each pixel or token), ``float``
            (values to regress), or ``none`` (the model returns its own scalar loss).
        shape: Shape of the targets of one sample.
        classes: Name of the setting that tells the number of classes; None where there are none.
    """

    kind: TargetKind = "class"
    shape: Callable[[Settings], tuple[int, ...]] = lambda settings: ()  # noqa: ARG005
    classes: str | None = "classes"


@dataclass(frozen=True, eq=False)
class ModelEntry:
    """A registered model; declared without importing torch.

    Attributes:
        name: What the model is called.
        family: Models with one architecture; predictors are judged on families that they have not seen.
        description: The model, in one line.
        settings: The settings by name.
        builder: ``module:name`` of a class or function that takes the settings as keyword arguments.
        inputs: Positional arguments of the model.
        target: What it is trained on.
        has_conv: A convolution is among its layers.
        has_rnn: A recurrent layer is among its layers.
        contradiction: Returns what is wrong with settings that are valid one by one, or None.
        fixed: Arguments of the builder that are no settings.
    """

    name: str
    family: str
    description: str
    settings: Mapping[str, Setting]
    builder: str
    inputs: tuple[Input, ...]
    target: Target = field(default_factory=Target)
    has_conv: bool = False
    has_rnn: bool = False
    contradiction: Callable[[Settings], str | None] | None = None
    fixed: Settings = field(default_factory=dict)

    def resolve_settings(self, given: Settings) -> dict[str, Any]:
        """Fill in the defaults.

        Args:
            given: Values by setting name; those not named take their default.

        Returns:
            A value for every setting, in the order of declaration.

        Raises:
            UnknownNameError: A name is no setting of this model.
            UsageError: A value is of the wrong kind or out of range, or two values contradict each other.
        """
        # numpy's numbers are as good as Python's.
        given = {name: value.item() if hasattr(value, "item") else value for name, value in given.items()}
        for name, value in given.items():
            if name not in self.settings:
                raise UnknownNameError("setting", name, self.settings)
            if not self.settings[name].accepts(value):
                raise UsageError(f"{self.name}: {name} must be {self.settings[name].describe()}, got {value!r}")
        resolved = {name: given.get(name, setting.default) for name, setting in self.settings.items()}
        for name, setting in self.settings.items():
            if setting.kind == "float":  # 0 and 0.0 are one model, and must have one identity
                resolved[name] = float(resolved[name])
        problem = self.contradiction(resolved) if self.contradiction is not None else None
        if problem is not None:
            raise UsageError(f"{self.name}: {problem}")
        return resolved

    def build(self, settings: Settings) -> nn.Module:
        """Build the model with random weights.

        Args:
            settings: Settings; those not named take their default.

        Raises:
            UnknownNameError: A name is no setting of this model.
            UsageError: A value is wrong, or two values contradict each other.
        """
        resolved = self.resolve_settings(settings)
        module, _, name = self.builder.partition(":")
        model: nn.Module = getattr(importlib.import_module(module), name)(**self.fixed, **resolved)
        return model

    def input_shape(self, settings: Settings) -> tuple[int, ...]:
        """Shape of one sample of the first argument, without the batch dimension."""
        return self.inputs[0].shape(self.resolve_settings(settings))

    def classes(self, settings: Settings) -> int:
        """Number of classes of the targets; 0 where the targets are no classes."""
        return 0 if self.target.classes is None else int(self.resolve_settings(settings)[self.target.classes])

    def example_inputs(self, settings: Settings, batch_size: int) -> Tensor | tuple[Tensor, ...]:
        """Random inputs: a tensor, or a tuple of positional arguments.

        Floats are drawn from the standard normal distribution, ids (int64) uniformly, with torch's global generator.
        """
        import torch

        resolved = self.resolve_settings(settings)
        tensors = tuple(
            torch.randn(batch_size, *given.shape(resolved))
            if given.ids is None
            else torch.randint(0, resolved[given.ids], (batch_size, *given.shape(resolved)))
            for given in self.inputs
        )
        return tensors[0] if len(tensors) == 1 else tensors

    def example_targets(self, settings: Settings, batch_size: int) -> Tensor | None:
        """Random targets: int64 classes or float32 values of shape (batch_size, *one sample); None without targets."""
        import torch

        if self.target.kind == "none":
            return None
        resolved = self.resolve_settings(settings)
        shape = (batch_size, *self.target.shape(resolved))
        if self.target.classes is None:
            return torch.randn(shape)
        return torch.randint(0, resolved[self.target.classes], shape)
