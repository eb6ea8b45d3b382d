"""Inputs described in words, for models that bring none of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainpilot.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class InputSpec:
    """The shape of one sample, without the batch dimension.

    Attributes:
        shape: Shape of one float sample, e.g. (3, 64, 64); or None for token ids.
        tokens: Length of one sequence of token ids; or None for floats.
        vocabulary: Number of different token ids.

    Raises:
        UsageError: Neither or both of ``shape`` and ``tokens`` are given, or a size is below 1.
    """

    shape: tuple[int, ...] | None = None
    tokens: int | None = None
    vocabulary: int = 30_000

    def __post_init__(self) -> None:
        if (self.shape is None) == (self.tokens is None):
            raise UsageError("input: give either a shape such as 3x64x64 or a number of token ids")
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))
        sizes = (*(self.shape or ()), *([] if self.tokens is None else [self.tokens]), self.vocabulary)
        if any(size < 1 for size in sizes):
            raise UsageError(f"input: every size must be at least 1, got {sizes}")

    @classmethod
    def parse(cls, text: str) -> InputSpec:
        """Read ``3x64x64``.

        Raises:
            UsageError: The text is not sizes joined by ``x``.
        """
        try:
            return cls(shape=tuple(int(part) for part in text.lower().split("x")))
        except ValueError:
            raise UsageError(
                f"input {text!r}: write the shape of one sample as sizes of at least 1, e.g. 3x64x64"
            ) from None

    def example_inputs(self, batch_size: int) -> Tensor:
        """Random inputs: float of shape (batch_size, *shape), or int64 ids of shape (batch_size, tokens)."""
        import torch

        if self.tokens is not None:
            return torch.randint(0, self.vocabulary, (batch_size, self.tokens))
        assert self.shape is not None
        return torch.randn(batch_size, *self.shape)

    @staticmethod
    def class_targets(batch_size: int, classes: int) -> Tensor:
        """Random class targets: int64 of shape (batch_size,)."""
        import torch

        return torch.randint(0, classes, (batch_size,))
