"""Vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks
from trainpilot.zoo.models.attention import Block, BlockStyle


class ViT(nn.Module):
    """Patches as tokens, ``layers`` encoder blocks, classifier on a class token or on the mean.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,
        image_channels: int,
        patch: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        activation: str,
        norm_first: bool,
        attention: str,
        fused_qkv: bool,
        pooling: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        style = BlockStyle(
            width=width,
            heads=heads,
            kv_heads=heads,
            hidden=hidden,
            activation=activation,
            norm_first=norm_first,
            attention=attention,
            fused_qkv=fused_qkv,
            dropout=dropout,
        )
        self.patches = nn.Conv2d(image_channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if pooling == "class_token" else None
        length = (image_size // patch) ** 2 + (pooling == "class_token")
        self.positions = nn.Parameter(torch.randn(1, length, width) * 0.02)
        self.dropout = blocks.dropout(dropout)
        self.blocks = nn.ModuleList(Block(style) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x = torch.cat((self.class_token.expand(len(x), -1, -1), x), dim=1)
        x = self.dropout(x + self.positions)
        for block in self.blocks:
            x = block(x)
        x = self.final_norm(x)
        scores: Tensor = self.head(x.mean(1) if self.class_token is None else x[:, 0])
        return scores
