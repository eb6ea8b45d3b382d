"""Attention and transformer blocks, assembled as published models assemble them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainpilot.zoo.models import layers as blocks

_ROTARY_BASE = 10_000.0  # Su et al. 2021, RoFormer


@dataclass(frozen=True)
class BlockStyle:
    """What all blocks of one transformer have in common.

    Attributes:
        width: Size of the vector of each position.
        heads: Attention heads.
        kv_heads: Heads of keys and values; fewer than ``heads`` share them in groups.
        hidden: Units of the feed-forward layer.
        activation: Its activation.
        gated: The activation gates a second projection (SwiGLU and the like).
        norm: ``layer`` or ``rms``.
        norm_first: Normalise before attention and feed-forward, not after.
        attention: ``sdpa`` for torch's fused kernel, ``explicit`` for matmul, softmax, matmul.
        fused_qkv: One projection for queries, keys and values.
        rotary: Positions enter as rotations of queries and keys.
        bias: Linear layers add a bias.
        dropout: Share dropped in training.
    """

    width: int
    heads: int
    kv_heads: int
    hidden: int
    activation: str = "gelu"
    gated: bool = False
    norm: str = "layer"
    norm_first: bool = True
    attention: str = "sdpa"
    fused_qkv: bool = False
    rotary: bool = False
    bias: bool = True
    dropout: float = 0.0


class RMSNorm(nn.Module):
    """Root-mean-square normalisation written out, as most published models do."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def sequence_norm(name: str, width: int) -> nn.Module:
    """Normalise the last dimension: ``layer`` or ``rms``."""
    return RMSNorm(width) if name == "rms" else nn.LayerNorm(width)


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs of features by an angle that grows with the position; x: (batch, heads, length, size)."""
    length, size = x.shape[-2], x.shape[-1]
    rates = 1.0 / _ROTARY_BASE ** (torch.arange(0, size, 2, device=x.device, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(length, device=x.device, dtype=torch.float32), rates)
    angles = torch.cat((angles, angles), dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * angles.cos().to(x.dtype) + torch.cat((-second, first), dim=-1) * angles.sin().to(x.dtype)


class Attention(nn.Module):
    """Multi-head attention of (batch, length, width) to itself or to a context."""

    def __init__(self, style: BlockStyle, *, causal: bool = False, cross: bool = False) -> None:
        super().__init__()
        self.style = style
        self.causal = causal
        self.size = style.width // style.heads
        kv_width = style.kv_heads * self.size
        self.fused = style.fused_qkv and not cross
        if self.fused:
            self.qkv = nn.Linear(style.width, style.width + 2 * kv_width, bias=style.bias)
        else:
            self.query = nn.Linear(style.width, style.width, bias=style.bias)
            self.key = nn.Linear(style.width, kv_width, bias=style.bias)
            self.value = nn.Linear(style.width, kv_width, bias=style.bias)
        self.out = nn.Linear(style.width, style.width, bias=style.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            x: Queries, (batch, length, width).
            mask: Added to the scores, broadcast to (batch, heads, length, context length).
            context: What is attended to; default: ``x``.
        """
        style = self.style
        if self.fused:
            kv_width = style.kv_heads * self.size
            query, key, value = self.qkv(x).split((style.width, kv_width, kv_width), dim=-1)
        else:
            source = x if context is None else context
            query, key, value = self.query(x), self.key(source), self.value(source)
        query, key, value = self._heads(query), self._heads(key), self._heads(value)
        if style.rotary and context is None:
            query, key = rotate(query), rotate(key)
        groups = style.heads // style.kv_heads
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        mixed = self._mix(query, key, value, mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], -1, self.size).transpose(1, 2)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        share = self.style.dropout if self.training else 0.0
        if self.style.attention == "sdpa":
            return functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=share, is_causal=self.causal and mask is None
            )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.size)
        if self.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        if mask is not None:
            scores = scores + mask
        return functional.dropout(scores.softmax(-1), share) @ value


class FeedForward(nn.Module):
    """Two linear layers with an activation, or three where the activation gates."""

    def __init__(self, style: BlockStyle) -> None:
        super().__init__()
        self.up = nn.Linear(style.width, style.hidden, bias=style.bias)
        self.gate = nn.Linear(style.width, style.hidden, bias=style.bias) if style.gated else None
        self.activation = blocks.activation(style.activation)
        self.down = nn.Linear(style.hidden, style.width, bias=style.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position by itself."""
        hidden = self.activation(self.up(x)) if self.gate is None else self.activation(self.gate(x)) * self.up(x)
        out: Tensor = self.down(hidden)
        return out


class Block(nn.Module):
    """Attention, optional attention to a context, and feed-forward, each with norm, dropout and residual."""

    def __init__(self, style: BlockStyle, *, causal: bool = False, cross: bool = False) -> None:
        super().__init__()
        self.norm_first = style.norm_first
        self.attention = Attention(style, causal=causal)
        self.attention_norm = sequence_norm(style.norm, style.width)
        self.cross = Attention(style, cross=True) if cross else None
        self.cross_norm = sequence_norm(style.norm, style.width) if cross else None
        self.feed_forward = FeedForward(style)
        self.feed_forward_norm = sequence_norm(style.norm, style.width)
        self.dropout = blocks.dropout(style.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """(batch, length, width) → the same."""
        if self.norm_first:
            x = x + self.dropout(self.attention(self.attention_norm(x), mask))
            if self.cross is not None and self.cross_norm is not None:
                x = x + self.dropout(self.cross(self.cross_norm(x), context=context))
            out: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
            return out
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        if self.cross is not None and self.cross_norm is not None:
            x = self.cross_norm(x + self.dropout(self.cross(x, context=context)))
        normed: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return normed


class RelativeBias(nn.Module):
    """A learned score for each head and distance between positions, clipped (Raffel et al. 2020, simplified)."""

    def __init__(self, heads: int, farthest: int = 64) -> None:
        super().__init__()
        self.farthest = farthest
        self.scores = nn.Embedding(2 * farthest + 1, heads)

    def forward(self, length: int) -> Tensor:
        """Scores of shape (1, heads, length, length)."""
        positions = torch.arange(length, device=self.scores.weight.device)
        distances = (positions[None, :] - positions[:, None]).clamp(-self.farthest, self.farthest) + self.farthest
        scores: Tensor = self.scores(distances)
        return scores.permute(2, 0, 1).unsqueeze(0)


class Embedding(nn.Module):
    """Token embedding plus learned positions, with optional norm and dropout; ids (batch, length) → vectors."""

    def __init__(
        self, vocabulary: int, sequence: int, width: int, *, positions: bool, norm: bool, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(sequence, width) if positions else None
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.dropout = blocks.dropout(dropout)
        # The default unit variance saturates a head that shares these weights; 0.02 is what GPT-2 and BERT use.
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up."""
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        out: Tensor = self.dropout(self.norm(x))
        return out
