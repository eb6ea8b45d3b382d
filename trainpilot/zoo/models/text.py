"""Text classifiers on embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class TextBag(nn.Module):
    """Mean or sum of token embeddings, then ``layers`` linear layers.

    Shapes: ids (batch, sequence) → (batch, classes).
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        sequence: int,  # noqa: ARG002 - any length fits; declared because the input has it
        embedding: int,
        mode: str,
        layers: int,
        width: int,
        activation: str,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(vocabulary, embedding, mode=mode)
        body: list[nn.Module] = []
        before = embedding
        for _ in range(layers - 1):
            body += [nn.Linear(before, width), blocks.activation(activation), blocks.dropout(dropout)]
            before = width
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(before, classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.body(self.bag(ids)))
        return scores


class TextCNN(nn.Module):
    """Convolutions of several widths over token embeddings, maximum over time, linear layer (Kim 2014).

    Shapes: ids (batch, sequence) → (batch, classes).
    """

    _KERNELS: Sequence[int] = (3, 4, 5)

    def __init__(
        self,
        *,
        vocabulary: int,
        sequence: int,  # noqa: ARG002 - any length fits; declared because the input has it
        embedding: int,
        width: int,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.convolutions = nn.ModuleList(nn.Conv1d(embedding, width, kernel) for kernel in self._KERNELS)
        self.dropout = blocks.dropout(dropout)
        self.head = nn.Linear(width * len(self._KERNELS), classes)

    def forward(self, ids: Tensor) -> Tensor:
        """Class scores."""
        x = self.embedding(ids).transpose(1, 2)
        found = torch.cat([torch.relu(convolution(x)).amax(-1) for convolution in self.convolutions], dim=1)
        scores: Tensor = self.head(self.dropout(found))
        return scores
