"""VGG-like classifier."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

# Convolutions in each of the five stages (Simonyan & Zisserman 2015, table 1); 8 is a smaller one of the same kind.
STAGES = {8: (1, 1, 1, 1, 1), 11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_MOST_DOUBLINGS = 3


class VGG(nn.Module):
    """Stages of 3x3 convolutions with max-pooling, then three linear layers.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,
        image_channels: int,
        layers: int,
        width: int,
        hidden: int,
        norm: str,
        activation: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        before, size = image_channels, image_size
        features: list[nn.Module] = []
        for stage, count in enumerate(STAGES[layers]):
            after = width * 2 ** min(stage, _MOST_DOUBLINGS)
            for _ in range(count):
                features += [
                    nn.Conv2d(before, after, 3, padding=1, bias=norm == "none"),
                    blocks.norm2d(norm, after),
                    blocks.activation(activation),
                ]
                before = after
            if size > 1:
                features.append(nn.MaxPool2d(2))
                size //= 2
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(
            nn.Linear(before * size * size, hidden),
            blocks.activation(activation),
            blocks.dropout(dropout),
            nn.Linear(hidden, hidden),
            blocks.activation(activation),
            blocks.dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.classifier(self.features(x).flatten(1))
        return scores
