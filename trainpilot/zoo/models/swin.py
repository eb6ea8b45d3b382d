"""Vision transformer with attention in shifted windows."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models.attention import Block, BlockStyle


class WindowTransformer(nn.Module):
    """Stages of blocks that attend within windows, every second one shifted by half a window (Liu et al. 2021).

    Windows that wrap around the border are not masked, and positions enter once as learned vectors.

    Shapes: (batch, image_channels, image_size, image_size) → (batch, classes).
    """

    def __init__(
        self,
        *,
        image_size: int,
        image_channels: int,
        patch: int,
        window: int,
        stages: int,
        layers: int,
        width: int,
        heads: int,
        attention: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        self.window = window
        self.patches = nn.Conv2d(image_channels, width, patch, stride=patch)
        self.patch_norm = nn.LayerNorm(width)
        side = image_size // patch
        self.positions = nn.Parameter(torch.randn(1, side, side, width) * 0.02)
        self.layers = layers
        self.blocks = nn.ModuleList()
        self.merges = nn.ModuleList()
        for stage in range(stages):
            size = width * 2**stage
            style = BlockStyle(
                width=size,
                heads=heads * 2**stage,
                kv_heads=heads * 2**stage,
                hidden=4 * size,
                attention=attention,
                fused_qkv=True,
                dropout=dropout,
            )
            self.blocks.extend(Block(style) for _ in range(layers))
            if stage < stages - 1:
                self.merges.append(nn.Sequential(nn.LayerNorm(4 * size), nn.Linear(4 * size, 2 * size, bias=False)))
        last = width * 2 ** (stages - 1)
        self.final_norm = nn.LayerNorm(last)
        self.head = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.patch_norm(self.patches(x).permute(0, 2, 3, 1)) + self.positions
        for number, block in enumerate(self.blocks):
            stage, index = divmod(number, self.layers)
            if stage > 0 and index == 0:
                corners = (x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2])
                x = self.merges[stage - 1](torch.cat(corners, dim=-1))
            x = self._attend(x, block, shift=self.window // 2 if index % 2 else 0)
        scores: Tensor = self.head(self.final_norm(x).mean((1, 2)))
        return scores

    def _attend(self, x: Tensor, block: nn.Module, shift: int) -> Tensor:
        batch, side, _, width = x.shape
        window = min(self.window, side)
        shift = shift if side > window else 0
        if shift:
            x = torch.roll(x, (-shift, -shift), dims=(1, 2))
        count = side // window
        x = x.view(batch, count, window, count, window, width).permute(0, 1, 3, 2, 4, 5)
        x = block(x.reshape(batch * count * count, window * window, width))
        x = x.view(batch, count, count, window, window, width).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(batch, side, side, width)
        return torch.roll(x, (shift, shift), dims=(1, 2)) if shift else x
