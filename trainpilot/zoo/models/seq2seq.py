"""Encoder-decoder transformer."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models.attention import Block, BlockStyle, Embedding, sequence_norm


class Seq2Seq(nn.Module):
    """Encoder and decoder of ``layers`` blocks each, with attention from the decoder to the encoder.

    Shapes: source ids (batch, source), target ids (batch, sequence) → (batch, sequence, vocabulary).
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        source: int,
        sequence: int,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        activation: str,
        norm: str,
        norm_first: bool,
        attention: str,
        bias: bool,
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
            norm=norm,
            norm_first=norm_first,
            attention=attention,
            bias=bias,
            dropout=dropout,
        )
        self.source_embedding = Embedding(vocabulary, source, width, positions=True, norm=False, dropout=dropout)
        self.target_embedding = Embedding(vocabulary, sequence, width, positions=True, norm=False, dropout=dropout)
        self.encoder = nn.ModuleList(Block(style) for _ in range(layers))
        self.encoder_norm = sequence_norm(norm, width)
        self.decoder = nn.ModuleList(Block(style, causal=True, cross=True) for _ in range(layers))
        self.decoder_norm = sequence_norm(norm, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.target_embedding.tokens.weight = self.source_embedding.tokens.weight
            self.head.weight = self.source_embedding.tokens.weight

    def forward(self, source_ids: Tensor, target_ids: Tensor) -> Tensor:
        """Token scores at every target position."""
        context = self.source_embedding(source_ids)
        for block in self.encoder:
            context = block(context)
        context = self.encoder_norm(context)
        x = self.target_embedding(target_ids)
        for block in self.decoder:
            x = block(x, context=context)
        scores: Tensor = self.head(self.decoder_norm(x))
        return scores
