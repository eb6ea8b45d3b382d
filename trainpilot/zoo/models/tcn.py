"""Temporal convolutional network."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class _Block(nn.Module):
    """Two dilated convolutions with a residual (Bai et al. 2018, with batch norm in place of weight norm)."""

    def __init__(self, before: int, after: int, kernel: int, dilation: int, norm: str, activation: str, dropout: float):
        super().__init__()
        main: list[nn.Module] = []
        for inner in (before, after):
            main += [
                nn.Conv1d(inner, after, kernel, padding=dilation * (kernel // 2), dilation=dilation),
                nn.BatchNorm1d(after) if norm == "batch" else nn.Identity(),
                blocks.activation(activation),
                blocks.dropout(dropout),
            ]
        self.main = nn.Sequential(*main)
        self.shortcut = nn.Conv1d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.main(x) + self.shortcut(x)
        return out


class TCN(nn.Module):
    """``layers`` blocks whose dilation doubles (up to the sequence), mean over time, linear layer.

    Shapes: (batch, sequence, features) → (batch, classes).
    """

    def __init__(
        self,
        *,
        sequence: int,
        features: int,
        layers: int,
        width: int,
        kernel: int,
        norm: str,
        activation: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        body: list[nn.Module] = []
        dilation = 1
        for index in range(layers):
            body.append(_Block(features if index == 0 else width, width, kernel, dilation, norm, activation, dropout))
            if 2 * dilation * (kernel // 2) < sequence:
                dilation *= 2
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.body(x.transpose(1, 2)).mean(-1))
        return scores
