"""Parameters that share memory count once, however they share it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainpilot.profiling.structure import structure_of

from .test_flops import of


def transposed(weight: torch.Tensor) -> torch.Tensor:
    return weight.t()


def first_rows(weight: torch.Tensor) -> torch.Tensor:
    return weight[:4]


def first_columns(weight: torch.Tensor) -> torch.Tensor:
    return weight[:, :4]


def flat(weight: torch.Tensor) -> torch.Tensor:
    return weight.view(-1)


class Views(nn.Module):
    def __init__(self, *ways: Callable[[torch.Tensor], torch.Tensor], storage: int = 8) -> None:
        super().__init__()
        weight = torch.randn(storage, 8)[:8]
        self.all = nn.ParameterList(nn.Parameter(way(weight)) for way in ways)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(x.sum() * parameter.sum() for parameter in self.all)


@pytest.mark.parametrize(
    ("ways", "elements"),
    [
        ((flat, transposed), 64),
        ((flat, first_rows), 64),
        ((first_columns, flat), 64),
        ((first_rows, lambda weight: weight[4:]), 64),
        ((first_rows, lambda weight: weight[2:6]), 48),
        ((first_rows, first_columns), 4 * 8 + 4 * 4),
        ((first_columns, lambda weight: weight[:, 4:]), 64),
    ],
)
@pytest.mark.parametrize("storage", [8, 10])
def test_overlapping_parameters_count_once(
    ways: tuple[Callable[[torch.Tensor], torch.Tensor], ...], elements: int, storage: int
) -> None:
    p = of(Views(*ways, storage=storage), torch.randn(4, 8))
    assert (p.params, p.trainable_params, p.param_bytes) == (elements, elements, 4 * elements)
    assert p.memory.weights_bytes == 4 * elements


def test_what_a_frozen_and_a_trained_view_share_is_trained() -> None:
    model = Views(first_rows, flat)
    model.all[1].requires_grad_(False)
    structure = structure_of(model)
    assert (structure.params, structure.trainable_params) == (64, 32)


def test_views_of_another_type_count_in_elements_of_the_first() -> None:
    model = nn.Module()
    whole = torch.zeros(4, 2)
    model.register_buffer("whole", whole)
    model.register_buffer("bytes_of_it", whole.view(torch.uint8))
    structure = structure_of(model)
    assert (structure.buffers, structure.buffer_bytes) == (8, 32)
