"""What a run learns from: the targets, or a loss that the model brings itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainpilot.errors import DataError, LossRequiredError
from trainpilot.workload import Workload, compute_loss, main_output
from trainpilot.workload.reference import is_code_reference, load_code_reference

if TYPE_CHECKING:
    from torch import Tensor

IGNORED_LABEL = -100
"""Label that cross-entropy leaves out; torch's default."""


def own_loss(outputs: Any, _targets: Any = None) -> Tensor:
    """The loss that the model's output holds.

    Raises:
        LossRequiredError: It holds none. Profiling and benchmarks make targets up then; a training run must not.
    """
    try:
        # An empty tuple is no target that a loss could be inferred from, so only the output's own loss is left.
        return compute_loss(outputs, (), None)
    except LossRequiredError:
        raise LossRequiredError(
            "y is None, but the model's output holds no loss of its own to train on: give y, or loss(outputs, targets)"
        ) from None


def has_given_loss(workload: Workload) -> bool:
    """True if the user gave ``loss(outputs, targets)``, in the workload or in the builder's file."""
    if isinstance(workload.model, str) and is_code_reference(workload.model) and workload.loss is None:
        return load_code_reference(workload.model).loss is not None
    return workload.loss is not None


def requiring_own_loss(workload: Workload) -> Workload:
    """The workload for data without targets: where no loss is given, the model must bring its own."""
    return workload if has_given_loss(workload) else dataclasses.replace(workload, loss=own_loss)


def class_dimension(prediction: Tensor, targets: Tensor) -> int | None:
    """Dimension of the classes: 1, or the last one (see ``compute_loss``); None where values are not classified."""
    if targets.is_floating_point() or targets.is_complex() or prediction.ndim != targets.ndim + 1:
        return None
    if prediction.shape[0] == targets.shape[0] and prediction.shape[2:] == targets.shape[1:]:
        return 1
    return prediction.ndim - 1 if prediction.shape[:-1] == targets.shape else None


def check_labels(name: str, outputs: Any, targets: Tensor, others: Sequence[Tensor]) -> None:
    """Refuse labels that are no classes of the model, where its loss is inferred.

    Args:
        name: What messages call the workload.
        outputs: What the model returned for the samples of ``targets``.
        targets: Their targets.
        others: All targets that will be used.

    Raises:
        DataError: A label is negative, or not below the number of classes; or all of them are -100.
    """
    prediction = main_output(outputs)
    dimension = None if prediction is None else class_dimension(prediction, targets)
    if prediction is None or dimension is None:
        return
    classes = prediction.shape[dimension]
    for labels in others:
        counted = labels[labels != IGNORED_LABEL]
        if counted.numel() == 0:
            raise DataError(f"{name}: every label is {IGNORED_LABEL}, which cross-entropy leaves out")
        lowest, highest = int(counted.min()), int(counted.max())
        if lowest < 0 or highest >= classes:
            wrong = lowest if lowest < 0 else highest
            raise DataError(
                f"{name}: labels must be from 0 to {classes - 1}, since the model has {classes} classes; one is {wrong}"
            )
