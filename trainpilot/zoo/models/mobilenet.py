"""Networks of depthwise-separable convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

_REDUCTION = 4  # Howard et al. 2019: squeeze-and-excitation works on a quarter of the channels
_MOST_CHANNELS = 1024


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate computed from the mean of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(channels // _REDUCTION, 4)
        self.down = nn.Conv2d(channels, inner, 1)
        self.up = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) → the same."""
        gate = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        return x * gate


class _Block(nn.Module):
    """Expansion (for inverted residuals), depthwise convolution, pointwise convolution."""

    def __init__(
        self,
        before: int,
        after: int,
        *,
        stride: int,
        kernel: int,
        expansion: int,
        inverted: bool,
        squeeze_excite: bool,
        norm: str,
        activation: str,
    ) -> None:
        super().__init__()
        inner = before * expansion if inverted else before
        main: list[nn.Module] = []
        if inner != before:
            main += _conv(before, inner, 1, norm=norm, activation=activation)
        main += _conv(inner, inner, kernel, norm=norm, activation=activation, stride=stride, groups=inner)
        if squeeze_excite:
            main.append(SqueezeExcite(inner))
        # The projection of an inverted residual is linear (Sandler et al. 2018).
        main += _conv(inner, after, 1, norm=norm, activation=None if inverted else activation)
        self.main = nn.Sequential(*main)
        self.residual = inverted and stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.main(x)
        return x + out if self.residual else out


def _conv(
    before: int, after: int, kernel: int, *, norm: str, activation: str | None, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    layers: list[nn.Module] = [
        nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=norm == "none"),
        blocks.norm2d(norm, after),
    ]
    return layers if activation is None else [*layers, blocks.activation(activation)]


class MobileNet(nn.Module):
    """Stem, ``layers`` blocks, pointwise convolution, mean, linear layer.

    The image is halved and the channels are doubled at ``stages`` evenly spaced blocks.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,  # noqa: ARG002 - any size fits; declared because the input has it
        image_channels: int,
        layers: int,
        stages: int,
        width: int,
        block: str,
        expansion: int,
        kernel: int,
        squeeze_excite: bool,
        stem_stride: int,
        norm: str,
        activation: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        body = _conv(image_channels, width, 3, norm=norm, activation=activation, stride=stem_stride)
        before = width
        for index in range(layers):
            starts_stage = index * stages // layers != (index - 1) * stages // layers and index > 0
            after = min(before * 2, _MOST_CHANNELS) if starts_stage else before
            body.append(
                _Block(
                    before,
                    after,
                    stride=2 if starts_stage else 1,
                    kernel=kernel,
                    expansion=expansion,
                    inverted=block == "inverted",
                    squeeze_excite=squeeze_excite,
                    norm=norm,
                    activation=activation,
                )
            )
            before = after
        last = min(before * 4, 2 * _MOST_CHANNELS)
        body += [*_conv(before, last, 1, norm=norm, activation=activation), nn.AdaptiveAvgPool2d(1)]
        self.body = nn.Sequential(*body)
        self.dropout = blocks.dropout(dropout)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.dropout(self.body(x).flatten(1)))
        return scores
