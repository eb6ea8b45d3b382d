"""Plain convolutional classifier."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

_MAX_CHANNELS = 512
_LEAST_POOLED_SIZE = 8


class CNN(nn.Module):
    """``layers - 1`` convolutions and one linear layer.

    The image is halved after each convolution while it is at least 8 pixels wide, so that any number of layers
    fits any image; channels double with each halving, up to 512.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,
        image_channels: int,
        layers: int,
        width: int,
        kernel: int,
        norm: str,
        activation: str,
        pooling: str,
        head: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        size, before, after = image_size, image_channels, width
        features: list[nn.Module] = []
        for _ in range(layers - 1):
            smaller = size >= _LEAST_POOLED_SIZE
            stride = 2 if smaller and pooling == "stride" else 1
            features += [
                nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=norm == "none"),
                blocks.norm2d(norm, after),
                blocks.activation(activation),
            ]
            before = after
            if smaller:
                if pooling != "stride":
                    features.append(nn.MaxPool2d(2) if pooling == "max" else nn.AvgPool2d(2))
                size = (size + 1) // 2 if pooling == "stride" else size // 2
                after = min(after * 2, _MAX_CHANNELS)
        self.features = nn.Sequential(*features)
        self.pool = nn.AdaptiveAvgPool2d(1) if head == "global" else nn.Identity()
        self.dropout = blocks.dropout(dropout)
        self.head = nn.Linear(before * (1 if head == "global" else size * size), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.pool(self.features(x))
        scores: Tensor = self.head(self.dropout(x.flatten(1)))
        return scores
