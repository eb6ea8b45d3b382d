"""The range of forward FLOPs of a model whose control flow looks at its input."""

from __future__ import annotations

import torch
from torch import nn

import trainpilot as tp

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


def test_range_includes_the_loss_as_the_count_does() -> None:
    class Judge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.l(x)
            return self.l(x) if x.abs().max() > 1e-3 else x

    def loss(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (output @ targets).sum()

    torch.manual_seed(0)
    module = Judge()
    nn.init.zeros_(module.l.bias)
    one = 2 * 4 * 8 * 8
    p = tp.profile(tp.Workload(module, example_inputs=torch.randn(4, 8), targets=torch.randn(8, 3), loss=loss))
    assert p.data_dependent
    assert p.forward_flops == 2 * one + 2 * 4 * 8 * 3
    assert p.forward_flops_range == (one + 2 * 4 * 8 * 3, 2 * one + 2 * 4 * 8 * 3)
