"""Optimizers that a plan can name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from trainpilot.errors import NothingToTrainError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

# name -> (class in torch.optim, arguments besides the learning rate)
_OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("Adam", {}),
    "adamw": ("AdamW", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
}
_LEARNING_RATES = {"sgd": 0.05, "momentum": 0.02, "nesterov": 0.02, "adadelta": 1.0, "adagrad": 0.01}
DEFAULT_LEARNING_RATE = 1e-3

OptimizerLike = str | Callable[[Iterable[Any]], "Optimizer"]


def optimizer_names() -> tuple[str, ...]:
    """Names that a plan can use."""
    return tuple(_OPTIMIZERS)


def check_optimizer(optimizer: OptimizerLike) -> str:
    """Return the name of an optimizer: the plan's own, or that of the user's factory.

    Raises:
        UnknownNameError: A string that names no optimizer.
        UsageError: Neither a name nor a factory, e.g. an optimizer that exists already.
    """
    if isinstance(optimizer, str):
        if optimizer not in _OPTIMIZERS:
            raise UnknownNameError("optimizer", optimizer, _OPTIMIZERS)
        return optimizer
    if not callable(optimizer):
        raise UsageError(
            f"optimizer must be one of {', '.join(_OPTIMIZERS)} or factory(parameters), got {type(optimizer).__name__}"
        )
    return getattr(optimizer, "__name__", type(optimizer).__name__).lower()


def build_optimizer(optimizer: OptimizerLike, model: nn.Module, learning_rate: float | None = None) -> Optimizer:
    """Make the optimizer over the parameters of ``model`` that require a gradient.

    Args:
        optimizer: A name, or ``factory(parameters)``.
        model: The model whose parameters are trained.
        learning_rate: Overrides the usual rate of a named optimizer.

    Raises:
        NothingToTrainError: No parameter requires a gradient.
        UnknownNameError: A string that names no optimizer.
    """
    import torch

    name = check_optimizer(optimizer)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise NothingToTrainError("nothing to train: no parameter of the model requires a gradient")
    if not isinstance(optimizer, str):
        return optimizer(trainable)
    kind, arguments = _OPTIMIZERS[name]
    rate = learning_rate if learning_rate is not None else _LEARNING_RATES.get(name, DEFAULT_LEARNING_RATE)
    built: Optimizer = getattr(torch.optim, kind)(trainable, lr=rate, **arguments)
    return built
