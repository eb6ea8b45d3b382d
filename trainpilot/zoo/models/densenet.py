"""Densely connected convolutional network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

_BOTTLENECK = 4  # Huang et al. 2017: 1x1 convolutions give four times the growth


class _DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int, norm: str) -> None:
        super().__init__()
        inner = _BOTTLENECK * growth
        self.main = nn.Sequential(
            blocks.norm2d(norm, before),
            nn.ReLU(),
            nn.Conv2d(before, inner, 1, bias=False),
            blocks.norm2d(norm, inner),
            nn.ReLU(),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.main(x)), dim=1)


class DenseNet(nn.Module):
    """Stages of layers that each see all earlier ones; between stages channels and image are halved.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,  # noqa: ARG002 - any size fits; declared because the input has it
        image_channels: int,
        stages: int,
        layers: int,
        growth: int,
        norm: str,
        classes: int,
    ) -> None:
        super().__init__()
        channels = 2 * growth
        body: list[nn.Module] = [nn.Conv2d(image_channels, channels, 3, padding=1, bias=False)]
        for stage in range(stages):
            for _ in range(layers):
                body.append(_DenseLayer(channels, growth, norm))
                channels += growth
            if stage < stages - 1:
                body += [
                    blocks.norm2d(norm, channels),
                    nn.ReLU(),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels //= 2
        body += [blocks.norm2d(norm, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.body(x).flatten(1))
        return scores
