"""Arrays as training reads them: any structure of inputs, targets, and batches of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainpilot import zoo
from trainpilot.errors import DataError
from trainpilot.workload import ModelInputs, Workload, map_tensors, tensor_leaves
from trainpilot.workload.reference import is_code_reference
from trainpilot.zoo.data import TrainingData, adapt_images, training_data
from trainpilot.zoo.data.validation import as_array

if TYPE_CHECKING:
    import torch
    from torch import Tensor

VALIDATION_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets, sample by sample along the first dimension.

    Attributes:
        inputs: What the model is called with, for all samples at once; tensors on the CPU.
        targets: Their targets, or None for a model that needs none.
        size: Number of samples.
    """

    inputs: ModelInputs
    targets: Tensor | None
    size: int

    def take(self, index: NDArray[np.int64]) -> Samples:
        """The samples at these places, as copies."""
        import torch

        place = torch.from_numpy(index)
        return Samples(
            inputs=map_tensors(lambda tensor: tensor[place], self.inputs),
            targets=None if self.targets is None else self.targets[place],
            size=len(index),
        )


@dataclass(frozen=True, eq=False)
class Splits:
    """Samples to train on, and held-out ones or None."""

    train: Samples
    validation: Samples | None


def split_samples(workload: Workload, data: Any, seed: int) -> Splits:
    """Read training data and check it against the workload.

    Args:
        workload: What is trained; a zoo model tells which shapes and labels it takes.
        data: ``TrainingData``, ``(X, y)`` or ``(X, y, X_val, y_val)``. X is an array, or a tuple or dict of arrays as
            the model is called with; y may be None for a model that brings its own loss. Without held-out samples a
            fifth is held out, of each class where y holds labels.
        seed: Decides which samples are held out.

    Raises:
        DataError: The data has another form, other lengths or shapes than needed, values that are not finite, or
            labels that are no classes of the model.
    """
    entry = zoo_entry(workload)
    if not isinstance(data, TrainingData):
        parts = _parts(data)
        if entry is None or entry.target.kind != "class" or len(entry.inputs) > 1:
            return _split_any(parts, seed, floating_dtype(workload.model))
        data = training_data(*parts, classes=entry.classes(workload.settings), seed=seed)
    x_train, x_val = data.x_train, data.x_val
    if entry is not None:
        classes = entry.classes(workload.settings)
        if classes and data.classes > classes:
            raise DataError(f"{data.name} has {data.classes} classes, but {entry.name} was built for {classes}")
        if entry.inputs[0].ids is None:
            shape = entry.input_shape(workload.settings)
            x_train, x_val = adapt_images(x_train, shape), adapt_images(x_val, shape)
    floating = floating_dtype(workload.model)
    train = as_samples(x_train, data.y_train, floating)
    return Splits(train, as_samples(x_val, data.y_val, floating) if len(data.y_val) else None)


def floating_dtype(model: Any) -> torch.dtype | None:
    """Floating-point type that a module computes in: that of its first such parameter; None where it is not built."""
    parameters = getattr(model, "parameters", None)
    if parameters is None:
        return None
    return next((parameter.dtype for parameter in parameters() if parameter.is_floating_point()), None)


def as_samples(x: Any, y: Any, floating: torch.dtype | None = None) -> Samples:
    """Turn arrays into samples: floats become ``floating``, whole numbers int64.

    Args:
        x: An array or tensor of shape (n, ...), or a tuple or dict of them.
        y: An array or tensor of shape (n, ...), or None.
        floating: Type of floats; default: float32.

    Raises:
        DataError: There are no samples, lengths differ, or a value is not finite.
    """
    inputs = ModelInputs.of(x)
    inputs = ModelInputs(
        args=tuple(
            _tensor(value, f"X[{i}]" if len(inputs.args) > 1 else "X", floating) for i, value in enumerate(inputs.args)
        ),
        kwargs={name: _tensor(value, f"X[{name!r}]", floating) for name, value in inputs.kwargs.items()},
    )
    targets = None if y is None else _tensor(y, "y", floating)
    lengths = {int(leaf.shape[0]) if leaf.ndim else -1 for leaf in tensor_leaves(inputs)}
    if len(lengths) != 1 or min(lengths) < 1:
        raise DataError("X must hold arrays with one row per sample, all of the same length, and at least one sample")
    size = lengths.pop()
    if targets is not None and (targets.ndim == 0 or targets.shape[0] != size):
        raise DataError(f"X has {size} samples but y has shape {tuple(targets.shape)}")
    return Samples(inputs, targets, size)


def batch_indices(
    size: int, batch_size: int, rng: np.random.Generator, *, drop_last: bool, merge_single: bool
) -> list[NDArray[np.int64]]:
    """Divide all samples into batches, in random order.

    Args:
        size: Number of samples.
        batch_size: Samples in a batch; the last one may be smaller.
        rng: Decides the order.
        drop_last: Leave out a smaller last batch.
        merge_single: A last batch of one sample joins the batch before it. Batch normalisation cannot train on one
            value per channel, and leaving the sample out would train on less than was asked.
    """
    order = rng.permutation(size)
    starts = list(range(0, size, batch_size))
    rest = size % batch_size
    ends = [*starts[1:], size]
    if drop_last and rest:
        del starts[-1], ends[-1]
    elif merge_single and rest == 1 and len(starts) > 1:
        del starts[-1], ends[-2]
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def zoo_entry(workload: Workload) -> zoo.ModelEntry | None:
    """What the zoo knows about the model; None for a model of the user's own."""
    if isinstance(workload.model, str) and not is_code_reference(workload.model):
        return zoo.get(workload.model)
    return None


def _parts(data: Any) -> tuple[Any, ...]:
    if isinstance(data, tuple | list) and len(data) in (2, 4):
        return tuple(data)
    raise DataError(f"data must be TrainingData, (X, y) or (X, y, X_val, y_val), got {type(data).__name__}")


def _split_any(parts: tuple[Any, ...], seed: int, floating: torch.dtype | None) -> Splits:
    whole = as_samples(parts[0], parts[1], floating)
    if len(parts) == 4:
        return Splits(whole, as_samples(parts[2], parts[3], floating))
    held_out = round(VALIDATION_SHARE * whole.size)
    if held_out == 0:
        return Splits(whole, None)
    order = np.random.default_rng(seed).permutation(whole.size)
    return Splits(whole.take(np.sort(order[held_out:])), whole.take(np.sort(order[:held_out])))


def _tensor(value: Any, name: str, floating: torch.dtype | None) -> Tensor:
    import torch

    if not isinstance(value, torch.Tensor):
        array = as_array(value, name)
        if array.dtype.kind not in "fiubc":
            raise DataError(f"{name} must hold numbers, got dtype {array.dtype}")
        # Batches are copies, so the user's memory is only read; torch refuses arrays that it could not write to.
        usable = array.flags.writeable and array.flags.c_contiguous
        value = torch.from_numpy(array if usable else array.copy(order="C"))
    tensor: Tensor = value.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.to(floating or torch.float32)
    elif not tensor.is_complex() and tensor.dtype != torch.bool:
        tensor = tensor.long()
    if not bool(torch.isfinite(tensor).all()):
        raise DataError(f"{name} is not finite: it holds NaN or infinite values")
    return tensor
