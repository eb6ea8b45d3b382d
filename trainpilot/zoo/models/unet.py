"""U-Net for segmentation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


def _double(before: int, after: int, norm: str, activation: str) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=norm == "none"),
        blocks.norm2d(norm, after),
        blocks.activation(activation),
        nn.Conv2d(after, after, 3, padding=1, bias=norm == "none"),
        blocks.norm2d(norm, after),
        blocks.activation(activation),
    )


def _upsample(before: int, after: int, kind: str) -> nn.Module:
    if kind == "transpose":
        return nn.ConvTranspose2d(before, after, 2, stride=2)
    smooth = None if kind == "nearest" else False
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode=kind, align_corners=smooth), nn.Conv2d(before, after, 3, padding=1)
    )


class UNet(nn.Module):
    """``layers`` halvings on the way down, as many doublings on the way up, with the features of the way down.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes, image_size, image_size).
    """

    def __init__(
        self,
        *,
        image_size: int,  # noqa: ARG002 - checked against the halvings before the model is built
        image_channels: int,
        layers: int,
        width: int,
        norm: str,
        activation: str,
        upsampling: str,
        classes: int,
    ) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(layers + 1)]
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        before = image_channels
        for size in sizes:
            self.down.append(_double(before, size, norm, activation))
            before = size
        for size in reversed(sizes[:-1]):
            self.up.append(_upsample(before, size, upsampling))
            self.merge.append(_double(2 * size, size, norm, activation))
            before = size
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of every pixel."""
        skipped = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else self.pool(x))
            skipped.append(x)
        skipped.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((skipped.pop(), up(x)), dim=1))
        scores: Tensor = self.head(x)
        return scores
