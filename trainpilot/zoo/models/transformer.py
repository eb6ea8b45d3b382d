"""Transformer encoders on token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks
from trainpilot.zoo.models.attention import Block, BlockStyle, Embedding, RelativeBias

PADDING_ID = 0


class Encoder(nn.Module):
    """Embedding and ``layers`` blocks; ids (batch, sequence) → (batch, sequence, width)."""

    def __init__(
        self,
        style: BlockStyle,
        *,
        vocabulary: int,
        sequence: int,
        layers: int,
        position: str,
        padding_mask: bool,
    ) -> None:
        super().__init__()
        self.padding_mask = padding_mask
        self.embedding = Embedding(
            vocabulary,
            sequence,
            style.width,
            positions=position == "learned",
            norm=not style.norm_first,
            dropout=style.dropout,
        )
        self.relative = RelativeBias(style.heads) if position == "relative" else None
        self.blocks = nn.ModuleList(Block(style) for _ in range(layers))
        self.final_norm = nn.LayerNorm(style.width) if style.norm_first else nn.Identity()

    def forward(self, ids: Tensor) -> Tensor:
        """Encode."""
        x = self.embedding(ids)
        mask = self.relative(ids.shape[1]) if self.relative is not None else None
        if self.padding_mask:
            lowest = torch.finfo(x.dtype).min
            padding = torch.zeros_like(ids, dtype=x.dtype).masked_fill(ids == PADDING_ID, lowest)[:, None, None, :]
            padding = padding.expand(-1, 1, ids.shape[1], -1)
            mask = padding if mask is None else mask + padding
        for block in self.blocks:
            x = block(x, mask)
        normed: Tensor = self.final_norm(x)
        return normed


class TransformerClassifier(nn.Module):
    """Encoder with a classifier on the first position (through a tanh layer) or on the mean of all.

    Shapes: ids (batch, sequence) → (batch, classes).
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        sequence: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        activation: str,
        norm_first: bool,
        attention: str,
        fused_qkv: bool,
        position: str,
        padding_mask: bool,
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
            rotary=position == "rotary",
            dropout=dropout,
        )
        self.encoder = Encoder(
            style,
            vocabulary=vocabulary,
            sequence=sequence,
            layers=layers,
            position=position,
            padding_mask=padding_mask,
        )
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh()) if pooling == "first" else None
        self.dropout = blocks.dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores."""
        x = self.encoder(ids)
        pooled = x.mean(1) if self.pooler is None else self.pooler(x[:, 0])
        scores: Tensor = self.head(self.dropout(pooled))
        return scores


class MaskedLanguageModel(nn.Module):
    """Encoder that predicts a token at every position, with the embedding as output layer where ``tied``.

    Shapes: ids (batch, sequence) → (batch, sequence, vocabulary).
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        sequence: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        activation: str,
        norm_first: bool,
        attention: str,
        fused_qkv: bool,
        position: str,
        padding_mask: bool,
        tied: bool,
        dropout: float,
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
            rotary=position == "rotary",
            dropout=dropout,
        )
        self.encoder = Encoder(
            style,
            vocabulary=vocabulary,
            sequence=sequence,
            layers=layers,
            position=position,
            padding_mask=padding_mask,
        )
        self.transform = nn.Sequential(nn.Linear(width, width), blocks.activation(activation), nn.LayerNorm(width))
        self.head = nn.Linear(width, vocabulary)
        if tied:
            self.head.weight = self.encoder.embedding.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Token scores."""
        scores: Tensor = self.head(self.transform(self.encoder(ids)))
        return scores
