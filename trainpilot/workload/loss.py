"""Which loss a training step minimises when the user gave none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainpilot.errors import LossRequiredError

if TYPE_CHECKING:
    from torch import Tensor


def compute_loss(outputs: Any, targets: Any, loss: Callable[[Any, Any], Any] | None) -> Tensor:
    """Return the scalar loss of one step.

    With ``loss`` given, that is ``loss(outputs, targets)``. Otherwise, in this order: the output's ``.loss``,
    ``["loss"]`` or a scalar first element; by the targets (integer: cross-entropy over dimension 1, or over the
    last one where the targets have one dimension less than the outputs and match their leading dimensions;
    floating: mean squared error); without targets, an output of shape (batch, classes >= 2) gets random class
    targets and cross-entropy, (batch,) or (batch, 1) mean squared error against zeros.

    Args:
        outputs: What the model returned.
        targets: Tensor or structure of tensors, or None.
        loss: The user's ``loss(outputs, targets)``, or None.

    Returns:
        A tensor of shape ().

    Raises:
        LossRequiredError: None of the rules applies, or the result or the output's own loss is not a scalar tensor.
    """
    import torch

    if loss is not None:
        value = loss(outputs, targets)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shown = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise LossRequiredError(f"loss(outputs, targets) must return a scalar tensor, got {shown}")
        return value.reshape(())
    own = _own_loss(outputs)
    if own is not None:
        return own
    scalars = _scalars_by_name(outputs)
    if scalars:
        raise LossRequiredError(
            f"the output holds only the scalars {', '.join(scalars)} and none is called loss: give "
            "loss(outputs, targets) that combines them, for example into their sum"
        )
    prediction = main_output(outputs)
    if prediction is None:
        raise LossRequiredError(
            f"no loss can be inferred for an output of type {type(outputs).__name__}: give loss(outputs, targets)"
        )
    if targets is not None:
        return _loss_by_targets(prediction, targets)
    return _loss_without_targets(prediction)


def main_output(outputs: Any) -> Tensor | None:
    """The prediction inside a model's output: the tensor itself, ``.logits``, or the first tensor found."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        value = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(value, torch.Tensor):
            return value
    items = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, tuple | list) else ()
    return next((item for item in items if isinstance(item, torch.Tensor)), None)


def _own_loss(outputs: Any) -> Tensor | None:
    import torch

    named = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(named, torch.Tensor) and named.is_floating_point():
        if named.numel() != 1:
            raise LossRequiredError(
                f"the output's own loss has shape {tuple(named.shape)}, not that of a scalar: give "
                "loss(outputs, targets) that reduces it, for example to its mean"
            )
        return named.reshape(())
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    # A first element of shape (1,) may be the prediction for a batch of one, so only a true scalar is a loss.
    if isinstance(first, torch.Tensor) and first.ndim == 0 and first.is_floating_point():
        return first
    return None


def _scalars_by_name(outputs: Any) -> tuple[str, ...]:
    """Names of the losses in a dict of nothing else, as detection models return it."""
    import torch

    if not isinstance(outputs, Mapping):
        return ()
    tensors = {name: value for name, value in outputs.items() if isinstance(value, torch.Tensor)}
    return tuple(map(str, tensors)) if all(value.ndim == 0 for value in tensors.values()) else ()


def _loss_by_targets(prediction: Tensor, targets: Any) -> Tensor:
    import torch
    from torch.nn import functional

    if not isinstance(targets, torch.Tensor):
        raise LossRequiredError(f"targets of type {type(targets).__name__} need an explicit loss(outputs, targets)")
    if targets.is_floating_point() or targets.is_complex():
        if prediction.shape != targets.shape and prediction.numel() == targets.numel():
            prediction = prediction.reshape(targets.shape)
        if prediction.shape != targets.shape:
            raise LossRequiredError(
                f"outputs of shape {tuple(prediction.shape)} and float targets of shape {tuple(targets.shape)} "
                "do not match: give loss(outputs, targets)"
            )
        return functional.mse_loss(prediction, targets)
    targets = targets.long()
    if prediction.ndim == targets.ndim + 1:
        if prediction.shape[0] == targets.shape[0] and prediction.shape[2:] == targets.shape[1:]:
            return functional.cross_entropy(prediction, targets)
        if prediction.shape[:-1] == targets.shape:
            return functional.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), targets.reshape(-1))
    raise LossRequiredError(
        f"outputs of shape {tuple(prediction.shape)} and class targets of shape {tuple(targets.shape)} "
        "do not fit cross-entropy: give loss(outputs, targets)"
    )


def _loss_without_targets(prediction: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    if prediction.is_floating_point():
        if prediction.ndim == 2 and prediction.shape[1] >= 2:
            classes = torch.randint(0, prediction.shape[1], (prediction.shape[0],), device=prediction.device)
            return functional.cross_entropy(prediction, classes)
        if prediction.ndim == 1 or (prediction.ndim == 2 and prediction.shape[1] == 1):
            return functional.mse_loss(prediction, torch.zeros_like(prediction))
    raise LossRequiredError(
        f"no loss can be inferred for an output of shape {tuple(prediction.shape)} without targets: "
        "give loss(outputs, targets) or targets"
    )
