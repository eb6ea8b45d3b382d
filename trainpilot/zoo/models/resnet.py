"""Residual networks with basic and bottleneck blocks."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks

# Blocks in each stage. Four stages: He et al. 2016, table 1; three stages: the same paper, section 4.2.
BASIC_STAGES = {
    8: (1, 1, 1),
    10: (1, 1, 1, 1),
    14: (2, 2, 2),
    18: (2, 2, 2, 2),
    20: (3, 3, 3),
    34: (3, 4, 6, 3),
    44: (7, 7, 7),
    56: (9, 9, 9),
    110: (18, 18, 18),
}
BOTTLENECK_STAGES = {
    14: (1, 1, 1, 1),
    26: (2, 2, 2, 2),
    38: (3, 3, 3, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
_EXPANSION = 4


class _Residual(nn.Module):
    """A main path plus its input, projected where the shape changes."""

    def __init__(self, main: nn.Sequential, before: int, after: int, stride: int, norm: str, activation: str) -> None:
        super().__init__()
        self.main = main
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=norm == "none"), blocks.norm2d(norm, after)
            )
        self.activation = blocks.activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.main(x) + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """Stem, stages of residual blocks, mean over positions, linear layer.

    ``layers`` counts the weight layers of the main path: the stem, two (basic) or three (bottleneck) convolutions a
    block, and the linear layer; projections of the shortcut are not counted.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,  # noqa: ARG002 - any size fits; declared because the input has it
        image_channels: int,
        layers: int,
        width: int,
        stem: str,
        norm: str,
        activation: str,
        classes: int,
        groups: int | None = None,
    ) -> None:
        super().__init__()
        bottleneck = groups is not None
        first = [
            nn.Conv2d(image_channels, width, 7, stride=2, padding=3, bias=norm == "none")
            if stem == "imagenet"
            else nn.Conv2d(image_channels, width, 3, padding=1, bias=norm == "none"),
            blocks.norm2d(norm, width),
            blocks.activation(activation),
        ]
        if stem == "imagenet":
            first.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*first)
        body: list[nn.Module] = []
        before = width
        for stage, count in enumerate((BOTTLENECK_STAGES if bottleneck else BASIC_STAGES)[layers]):
            inner = width * 2**stage
            after = inner * _EXPANSION if bottleneck else inner
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                main = (
                    _bottleneck(before, inner, after, stride, groups, norm, activation)
                    if groups is not None
                    else _basic(before, after, stride, norm, activation)
                )
                body.append(_Residual(main, before, after, stride, norm, activation))
                before = after
        self.body = nn.Sequential(*body)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.pool(self.body(self.stem(x))).flatten(1))
        return scores


def _basic(before: int, after: int, stride: int, norm: str, activation: str) -> nn.Sequential:
    bias = norm == "none"
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=bias),
        blocks.norm2d(norm, after),
        blocks.activation(activation),
        nn.Conv2d(after, after, 3, padding=1, bias=bias),
        blocks.norm2d(norm, after),
    )


def _bottleneck(
    before: int, inner: int, after: int, stride: int, groups: int, norm: str, activation: str
) -> nn.Sequential:
    bias = norm == "none"
    return nn.Sequential(
        nn.Conv2d(before, inner, 1, bias=bias),
        blocks.norm2d(norm, inner),
        blocks.activation(activation),
        nn.Conv2d(inner, inner, 3, stride=stride, padding=1, groups=groups, bias=bias),
        blocks.norm2d(norm, inner),
        blocks.activation(activation),
        nn.Conv2d(inner, after, 1, bias=bias),
        blocks.norm2d(norm, after),
    )
