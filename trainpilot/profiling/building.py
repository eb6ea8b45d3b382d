"""Building a model to be profiled: small ones as they are, large ones without memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainpilot.errors import ModelError
from trainpilot.workload import ResolvedWorkload, Workload

# Elements that a builder may allocate before it is stopped and started again on the meta device.
_MOST_ELEMENTS = 64 * 2**20
_FACTORIES = frozenset(("empty", "zeros", "ones", "rand", "randn", "full", "empty_strided", "randint", "normal"))
_QUANTISED_PACKAGES = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")


class _TooLargeError(Exception):
    """The builder asks for more memory than a profile should take."""


class _AllocationLimit(TorchDispatchMode):
    """Stops a builder before it allocates more elements than allowed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in _FACTORIES and args and isinstance(args[0], list | tuple | torch.Size):
            self._elements += prod(args[0])
            if self._elements > _MOST_ELEMENTS:
                raise _TooLargeError
        return func(*args, **(kwargs or {}))


def resolve(workload: Workload, *, real: bool = False) -> ResolvedWorkload:
    """The live parts of a workload, its model built without memory where that is possible and worth it.

    A model of the zoo is built on the meta device. So is that of a builder that asks for too much memory; other
    builders run as they are, because constructors of real models do read values. A module is taken as it is.

    Args:
        workload: What to build.
        real: Build on real memory whatever it takes.

    Raises:
        ModelError: The builder raises or returns no module, or no inputs are known.
    """
    if real or isinstance(workload.model, nn.Module):
        return workload.resolve()
    if workload.family != "custom":
        return _on_meta_or_real(workload)
    try:
        with _AllocationLimit():
            return workload.resolve()
    except ModelError as error:
        if not isinstance(error.__cause__, _TooLargeError):
            raise
    return _on_meta_or_real(workload)


def _on_meta_or_real(workload: Workload) -> ResolvedWorkload:
    try:
        with torch.device("meta"):
            return workload.resolve()
    except ModelError:  # the constructor reads values, which the meta device has none of
        return workload.resolve()


def refuse_uninitialised(name: str, model: nn.Module) -> None:
    """Raise for a module that has no place for its parts.

    Raises:
        ModelError: The constructor of a module did not call that of ``nn.Module``.
    """
    modules, seen = [model], set[int]()
    while modules:
        module = modules.pop()
        if isinstance(module, torch.jit.ScriptModule) or id(module) in seen:  # keeps its parts in its own way
            continue
        seen.add(id(module))
        if "_modules" not in vars(module):
            raise ModelError(
                f"{name}: {type(module).__name__} was never initialised: its __init__ must call super().__init__()"
            )
        modules += [child for child in module._modules.values() if child is not None]


def refuse_quantised(name: str, model: nn.Module) -> None:
    """Raise for a model with quantised parts, which have integer weights and no gradients.

    Raises:
        ModelError: A module is quantised, with the reason.
    """
    for path, module in model.named_modules():
        tensors = (*module._parameters.values(), *module._buffers.values())
        if type(module).__module__.startswith(_QUANTISED_PACKAGES) or any(
            tensor is not None and tensor.is_quantized for tensor in tensors
        ):
            raise ModelError(
                f"{name}: {path or 'the model'} ({type(module).__name__}) is quantised: integer weights have no "
                "gradients, so it cannot be trained; profile the float model, or one for quantisation-aware training"
            )
