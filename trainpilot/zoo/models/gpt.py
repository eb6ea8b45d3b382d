"""Decoder-only language models."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models.attention import Block, BlockStyle, Embedding, sequence_norm


class Decoder(nn.Module):
    """Causal blocks that predict the next token; ids (batch, sequence) → (batch, sequence, vocabulary)."""

    def __init__(self, style: BlockStyle, *, vocabulary: int, sequence: int, layers: int, tied: bool) -> None:
        super().__init__()
        self.embedding = Embedding(
            vocabulary, sequence, style.width, positions=not style.rotary, norm=False, dropout=style.dropout
        )
        self.blocks = nn.ModuleList(Block(style, causal=True) for _ in range(layers))
        self.final_norm = sequence_norm(style.norm, style.width) if style.norm_first else nn.Identity()
        self.head = nn.Linear(style.width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Token scores."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.final_norm(x))
        return scores


def gpt(
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
    bias: bool,
    tied: bool,
    dropout: float,
) -> Decoder:
    """Decoder with learned positions, layer norm and a plain feed-forward layer."""
    style = BlockStyle(
        width=width,
        heads=heads,
        kv_heads=heads,
        hidden=hidden,
        activation=activation,
        norm_first=norm_first,
        attention=attention,
        fused_qkv=fused_qkv,
        bias=bias,
        dropout=dropout,
    )
    return Decoder(style, vocabulary=vocabulary, sequence=sequence, layers=layers, tied=tied)


def rotary_gpt(
    *,
    vocabulary: int,
    sequence: int,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    activation: str,
    gated: bool,
    norm: str,
    attention: str,
    bias: bool,
    tied: bool,
) -> Decoder:
    """Decoder with rotary positions, grouped keys and values and a gated feed-forward layer."""
    style = BlockStyle(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
        activation=activation,
        gated=gated,
        norm=norm,
        attention=attention,
        rotary=True,
        bias=bias,
    )
    return Decoder(style, vocabulary=vocabulary, sequence=sequence, layers=layers, tied=tied)
