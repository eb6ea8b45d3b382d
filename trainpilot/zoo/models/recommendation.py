"""Recommendation model on dense features and categories."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


def _mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Embeddings of categories combined with an MLP of dense features (Naumov et al. 2019).

    ``interaction`` is ``dot`` for all pairwise products of the vectors, or ``concatenate``.

    Shapes: dense (batch, features), ids (batch, tables) → (batch, classes).
    """

    first: Tensor
    second: Tensor

    def __init__(
        self,
        *,
        features: int,
        tables: int,
        rows: int,
        embedding: int,
        layers: int,
        width: int,
        interaction: str,
        classes: int,
    ) -> None:
        super().__init__()
        self.interaction = interaction
        self.bottom = _mlp([features, *[width] * (layers - 1), embedding])
        self.tables = nn.ModuleList(nn.Embedding(rows, embedding) for _ in range(tables))
        vectors = tables + 1
        pairs = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("first", pairs[0], persistent=False)
        self.register_buffer("second", pairs[1], persistent=False)
        combined = embedding + pairs.shape[1] if interaction == "dot" else vectors * embedding
        self.top = _mlp([combined, *[width] * (layers - 1)])
        self.head = nn.Linear(width if layers > 1 else combined, classes)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Class scores."""
        bottom = self.bottom(dense)
        looked_up = [table(ids[:, index]) for index, table in enumerate(self.tables)]
        if self.interaction == "dot":
            vectors = torch.stack([bottom, *looked_up], dim=1)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            combined = torch.cat((bottom, products[:, self.first, self.second]), dim=1)
        else:
            combined = torch.cat([bottom, *looked_up], dim=1)
        scores: Tensor = self.head(self.top(combined))
        return scores
