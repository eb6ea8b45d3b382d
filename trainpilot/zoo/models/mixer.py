"""MLP-Mixer."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class _MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int, token_hidden: int, hidden: int, activation: str, dropout: float):
        super().__init__()
        self.token_norm = nn.LayerNorm(width)
        self.tokens = _mlp(tokens, token_hidden, activation, dropout)
        self.channel_norm = nn.LayerNorm(width)
        self.channels = _mlp(width, hidden, activation, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.channels(self.channel_norm(x))
        return mixed


def _mlp(size: int, hidden: int, activation: str, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(size, hidden),
        blocks.activation(activation),
        blocks.dropout(dropout),
        nn.Linear(hidden, size),
        blocks.dropout(dropout),
    )


class Mixer(nn.Module):
    """Patches, then ``layers`` blocks of an MLP over positions and one over channels (Tolstikhin et al. 2021).

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
        token_hidden: int,
        hidden: int,
        activation: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        tokens = (image_size // patch) ** 2
        self.patches = nn.Conv2d(image_channels, width, patch, stride=patch)
        self.blocks = nn.Sequential(
            *(_MixerBlock(tokens, width, token_hidden, hidden, activation, dropout) for _ in range(layers))
        )
        self.final_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        scores: Tensor = self.head(self.final_norm(x).mean(1))
        return scores
