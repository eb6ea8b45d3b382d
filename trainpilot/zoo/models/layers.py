"""Building blocks that several models share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class WrittenOutGELU(nn.Module):
    """The tanh approximation of GELU as many language models write it, one operator after the other."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply (Hendrycks & Gimpel 2016)."""
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))


class QuickGELU(nn.Module):
    """The sigmoid approximation of GELU (Hendrycks & Gimpel 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply."""
        return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "gelu_tanh": WrittenOutGELU,
    "quick_gelu": QuickGELU,
}

CELLS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def activation(name: str) -> nn.Module:
    """Make an activation module by name."""
    return _ACTIVATIONS[name]()


def norm2d(name: str, channels: int) -> nn.Module:
    """Normalise (batch, channels, height, width): ``none``, ``batch``, ``group`` (up to 32 groups) or ``layer``."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(math.gcd(32, channels), channels)
    if name == "layer":
        return nn.GroupNorm(1, channels)
    return nn.Identity()


def norm1d(name: str, features: int) -> nn.Module:
    """Normalise (batch, features): ``none``, ``batch`` or ``layer``."""
    if name == "batch":
        return nn.BatchNorm1d(features)
    if name == "layer":
        return nn.LayerNorm(features)
    return nn.Identity()


def dropout(share: float) -> nn.Module:
    """Dropout, or nothing at all where the share is 0."""
    return nn.Dropout(share) if share > 0 else nn.Identity()
