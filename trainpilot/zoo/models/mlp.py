"""Multi-layer perceptron."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class MLP(nn.Module):
    """``layers`` linear layers with an activation between them; inputs are flattened.

    Shapes: (batch, ...) with ``features`` values a sample → (batch, classes).
    """

    def __init__(
        self,
        *,
        features: int,
        layers: int,
        width: int,
        activation: str,
        norm: str,
        dropout: float,
        bias: bool,
        classes: int,
    ) -> None:
        super().__init__()
        sizes = [features, *[width] * (layers - 1)]
        hidden: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            hidden += [
                nn.Linear(before, after, bias=bias),
                blocks.norm1d(norm, after),
                blocks.activation(activation),
                blocks.dropout(dropout),
            ]
        self.hidden = nn.Sequential(*hidden)
        self.head = nn.Linear(sizes[-1], classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.hidden(x.flatten(1)))
        return scores
