"""Transformer on audio features."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks
from trainpilot.zoo.models.attention import Block, BlockStyle


class AudioTransformer(nn.Module):
    """Strided 1-d convolutions, a grouped convolution for positions, ``layers`` encoder blocks, mean, classifier.

    Each front-end convolution halves the length.

    Shapes: (batch, sequence, features) → (batch, classes).
    """

    def __init__(
        self,
        *,
        sequence: int,  # noqa: ARG002 - any length fits; declared because the input has it
        features: int,
        convolutions: int,
        position_kernel: int,
        position_groups: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        norm_first: bool,
        attention: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        style = BlockStyle(
            width=width,
            heads=heads,
            kv_heads=heads,
            hidden=hidden,
            norm_first=norm_first,
            attention=attention,
            dropout=dropout,
        )
        front: list[nn.Module] = []
        for index in range(convolutions):
            before = features if index == 0 else width
            front += [nn.Conv1d(before, width, 3, stride=2, padding=1), nn.GroupNorm(1, width), nn.GELU()]
        self.front = nn.Sequential(*front)
        self.position = nn.Conv1d(width, width, position_kernel, padding=position_kernel // 2, groups=position_groups)
        self.norm = nn.LayerNorm(width)
        self.dropout = blocks.dropout(dropout)
        self.blocks = nn.ModuleList(Block(style) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.front(x.transpose(1, 2))
        x = x + nn.functional.gelu(self.position(x)[..., : x.shape[-1]])
        x = self.dropout(self.norm(x.transpose(1, 2)))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean(1))
        return scores
