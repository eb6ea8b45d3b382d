"""ConvNeXt-like classifier."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class ChannelNorm(nn.Module):
    """Layer norm over the channels of (batch, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        normed: Tensor = self.norm(x.permute(0, 2, 3, 1))
        return normed.permute(0, 3, 1, 2)


class _Block(nn.Module):
    """Depthwise convolution, layer norm, two linear layers over channels, scale, residual (Liu et al. 2022)."""

    def __init__(self, channels: int, kernel: int, expansion: int, activation: str) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, expansion * channels)
        self.activation = blocks.activation(activation)
        self.down = nn.Linear(expansion * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(self.activation(self.up(y)))
        out: Tensor = x + y.permute(0, 3, 1, 2)
        return out


class ConvNeXt(nn.Module):
    """Patch stem and stages of ``layers`` blocks each; channels double and the image is halved between stages.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,  # noqa: ARG002 - checked against patch and stages before the model is built
        image_channels: int,
        patch: int,
        stages: int,
        layers: int,
        width: int,
        kernel: int,
        expansion: int,
        activation: str,
        classes: int,
    ) -> None:
        super().__init__()
        body: list[nn.Module] = [nn.Conv2d(image_channels, width, patch, stride=patch), ChannelNorm(width)]
        channels = width
        for stage in range(stages):
            body += [_Block(channels, kernel, expansion, activation) for _ in range(layers)]
            if stage < stages - 1:
                body += [ChannelNorm(channels), nn.Conv2d(channels, 2 * channels, 2, stride=2)]
                channels *= 2
        self.body = nn.Sequential(*body)
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.norm(self.body(x).mean((2, 3))))
        return scores
