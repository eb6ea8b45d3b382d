"""The range of forward FLOPs of a model whose control flow looks at its input."""

from __future__ import annotations

import torch
from torch import nn

from .test_flops import of


class Filtering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x[x[:, 0] > 0])


def test_the_sign_of_the_input_counts() -> None:
    for x in (-torch.ones(8, 8), torch.ones(8, 8)):
        p = of(Filtering(), x)
        # All eight rows pass or none does.
        assert p.forward_flops_range == (0, 8 * 64)
        assert torch.equal(x.abs(), torch.ones(8, 8))
