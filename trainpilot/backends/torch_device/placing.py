"""Bringing models and batches to a device without touching the caller's objects."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from trainpilot.errors import ModelError, TrainPilotError
from trainpilot.workload import ModelInputs, ResolvedWorkload, Workload, map_tensors, tensor_leaves

if TYPE_CHECKING:
    import torch
    from torch import nn


def own_model(workload: Workload, parts: ResolvedWorkload, example: ModelInputs) -> nn.Module:
    """Return a model that belongs to the session: a copy of the user's module, its lazy layers initialised.

    Raises:
        ModelError: The module cannot be copied, has no weights (meta device), or its lazy layers cannot be
            initialised from the example inputs.
    """
    import torch

    model = parts.model
    if not parts.owned:
        try:
            model = copy.deepcopy(model)
        except Exception as error:
            raise ModelError(
                f"{workload.name}: the module cannot be copied ({_one_line(error)}): give a function that builds it"
            ) from error
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()) if not _is_lazy(tensor)):
        raise ModelError(f"{workload.name}: the model is on the meta device and has no weights to train")
    if any(_is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        inputs = map_tensors(separate_copy, example)
        with EvaluationMode(model), torch.no_grad():
            try:
                model(*inputs.args, **inputs.kwargs)
            except TrainPilotError:
                raise
            except Exception as error:
                raise ModelError(f"{workload.name}: lazy layers cannot be initialised: {_one_line(error)}") from error
    return model


class EvaluationMode:
    """Puts a model in evaluation mode; afterwards each submodule has the mode it had before.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._training = [module for module in model.modules() if module.training]

    def __enter__(self) -> None:
        for module in self._training:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module in self._training:
            module.training = True


def to_device(value: Any, device: torch.device, memory_format: torch.memory_format, floating: torch.dtype) -> Any:
    """Move every tensor and numpy array inside ``value`` to the device.

    Args:
        value: A tensor, an array, or a structure of them; other leaves stay as they are.
        device: Where to.
        memory_format: Layout of 4-dimensional tensors.
        floating: Type of floating-point arrays: numpy's default is double, a model's is not. Tensors keep theirs.
    """
    import torch

    def move(tensor: torch.Tensor) -> torch.Tensor:
        layout = memory_format if tensor.ndim == 4 else torch.preserve_format
        # Detached, so that a gradient for the input is never written to the caller's tensor.
        moved = tensor.detach().to(device, memory_format=layout)
        if moved.is_inference():  # autograd refuses inference tensors
            moved = moved.clone()
        return moved.requires_grad_(tensor.requires_grad)

    return map_tensors(move, _arrays_to_tensors(value, floating))


def separate_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that shares neither memory nor gradients with the tensor."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _arrays_to_tensors(value: Any, floating: torch.dtype) -> Any:
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        # torch warns about arrays that it may not write to, and needs positive strides.
        writable = np.ascontiguousarray(value) if value.flags.writeable else value.copy()
        tensor = torch.from_numpy(writable)
        return tensor.to(floating) if tensor.is_floating_point() else tensor
    if isinstance(value, ModelInputs):
        return ModelInputs(_arrays_to_tensors(value.args, floating), _arrays_to_tensors(value.kwargs, floating))
    if type(value) in (list, tuple):
        return type(value)(_arrays_to_tensors(item, floating) for item in value)
    if type(value) is dict:
        return {key: _arrays_to_tensors(item, floating) for key, item in value.items()}
    return value


def tensor_versions(value: Any) -> list[int]:
    """Version counters of all tensors inside ``value``; a counter moves when its tensor is changed in place."""
    return [tensor._version for tensor in tensor_leaves(value)]


def _is_lazy(tensor: torch.Tensor) -> bool:
    from torch.nn.parameter import is_lazy

    return bool(is_lazy(tensor))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
