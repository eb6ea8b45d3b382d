"""Which loss is taken, by the rules of the documentation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from trainpilot.errors import LossRequiredError
from trainpilot.workload import compute_loss


@dataclasses.dataclass
class Output:
    loss: torch.Tensor | None
    logits: torch.Tensor


def test_given_loss_gets_outputs_then_targets() -> None:
    seen: list[Any] = []

    def loss(outputs: torch.Tensor, targets: str) -> torch.Tensor:
        seen.append((outputs, targets))
        return outputs.sum()

    outputs = torch.tensor([1.0, 2.0])
    assert compute_loss(outputs, "targets", loss).item() == 3.0
    assert seen == [(outputs, "targets")]


def test_given_loss_must_return_a_scalar() -> None:
    with pytest.raises(LossRequiredError, match=r"must return a scalar tensor, got \(2,\)"):
        compute_loss(torch.ones(2), None, lambda outputs, _: outputs)
    with pytest.raises(LossRequiredError, match="must return a scalar tensor, got float"):
        compute_loss(torch.ones(2), None, lambda *_: 1.0)


@pytest.mark.parametrize(
    "outputs",
    [
        Output(torch.tensor(7.0), torch.zeros(2, 3)),
        {"loss": torch.tensor(7.0), "logits": torch.zeros(2, 3)},
        (torch.tensor(7.0), torch.zeros(2, 3)),
        torch.tensor(7.0),
    ],
)
def test_own_loss_of_the_output_is_used(outputs: Any) -> None:
    assert compute_loss(outputs, None, None).item() == 7.0


def test_integer_targets_mean_cross_entropy() -> None:
    outputs, targets = torch.zeros(2, 4), torch.tensor([0, 3])
    assert compute_loss(outputs, targets, None).item() == pytest.approx(math.log(4))
    # logits per token, classes last: (batch, length, vocabulary)
    tokens = torch.zeros(2, 3, 5)
    assert compute_loss(tokens, torch.zeros(2, 3, dtype=torch.int64), None).item() == pytest.approx(math.log(5))
    # segmentation, classes in dimension 1
    image = torch.zeros(2, 6, 4, 4)
    assert compute_loss(image, torch.zeros(2, 4, 4, dtype=torch.int64), None).item() == pytest.approx(math.log(6))


def test_float_targets_mean_squared_error() -> None:
    assert compute_loss(torch.full((3, 1), 2.0), torch.zeros(3), None).item() == 4.0
    assert compute_loss(Output(None, torch.full((3, 2), 2.0)), torch.zeros(3, 2), None).item() == 4.0


def test_without_targets_the_shape_of_the_output_decides() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(5, 3)
    torch.manual_seed(1)
    value = compute_loss(outputs, None, None)
    torch.manual_seed(1)
    assert value.item() == functional.cross_entropy(outputs, torch.randint(0, 3, (5,))).item()
    assert compute_loss(torch.full((5, 1), 2.0), None, None).item() == 4.0
    assert compute_loss(torch.full((5,), 3.0), None, None).item() == 9.0


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (torch.zeros(2, 3, 4), None, "give loss"),
        (torch.zeros(2, 3), torch.zeros(5, dtype=torch.int64), "do not fit cross-entropy"),
        (torch.zeros(2, 3), torch.zeros(2, 4), "do not match"),
        ("text", None, "type str"),
        (torch.zeros(2, 3), [1, 2], "targets of type list"),
        (torch.zeros(2, 3, dtype=torch.int64), None, "give loss"),
        ({"loss": torch.zeros(4)}, None, r"own loss has shape \(4,\), not that of a scalar: give loss"),
        (Output(torch.zeros(4), torch.zeros(4, 2)), None, r"own loss has shape \(4,\)"),
        (
            {"loss_box": torch.tensor(1.0), "loss_class": torch.tensor(2.0)},
            None,
            "scalars loss_box, loss_class and none",
        ),
    ],
)
def test_what_cannot_be_inferred_asks_for_a_loss(outputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(LossRequiredError, match=message):
        compute_loss(outputs, targets, None)
