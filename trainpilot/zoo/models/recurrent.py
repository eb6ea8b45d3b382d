"""Recurrent classifiers and language models."""

from __future__ import annotations

from torch import Tensor, nn

from trainpilot.zoo.models import layers as blocks


class RecurrentClassifier(nn.Module):
    """``layers`` stacked recurrent layers; the output of the last step is classified.

    Shapes: (batch, sequence, features) → (batch, classes).
    """

    def __init__(
        self,
        *,
        cell: str,
        sequence: int,  # noqa: ARG002 - any length fits; declared because the input has it
        features: int,
        layers: int,
        width: int,
        bidirectional: bool,
        dropout: float,
        classes: int,
    ) -> None:
        super().__init__()
        self.recurrent = blocks.CELLS[cell](
            features,
            width,
            num_layers=layers,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
            batch_first=True,
        )
        self.head = nn.Linear(width * (2 if bidirectional else 1), classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        outputs, _ = self.recurrent(x)
        scores: Tensor = self.head(outputs[:, -1])
        return scores


class RecurrentLanguageModel(nn.Module):
    """Embedding, ``layers`` stacked recurrent layers, and a token predicted at every position.

    Shapes: ids (batch, sequence) → (batch, sequence, vocabulary).
    """

    def __init__(
        self,
        *,
        cell: str,
        vocabulary: int,
        sequence: int,  # noqa: ARG002 - any length fits; declared because the input has it
        layers: int,
        width: int,
        tied: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = blocks.dropout(dropout)
        self.recurrent = blocks.CELLS[cell](
            width, width, num_layers=layers, dropout=dropout if layers > 1 else 0.0, batch_first=True
        )
        self.head = nn.Linear(width, vocabulary)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Token scores."""
        outputs, _ = self.recurrent(self.dropout(self.embedding(ids)))
        scores: Tensor = self.head(self.dropout(outputs))
        return scores
