"""Settings and shapes that many models share."""

from __future__ import annotations

from trainpilot.zoo.entry import Setting, Settings, choice, flag, integer, real

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "leaky_relu")
MAX_CLASSES = 100_000


def activation(default: str = "relu") -> Setting:
    """Which activation follows the layers."""
    return choice(default, ACTIVATIONS, "activation function")


def norm(default: str = "batch") -> Setting:
    """Which normalisation follows the convolutions."""
    return choice(default, ("none", "batch", "group", "layer"), "normalisation after each convolution")


def classes(default: int = 10) -> Setting:
    """Number of classes."""
    return integer(default, 2, MAX_CLASSES, "number of classes")


def dropout(default: float = 0.0) -> Setting:
    """Share of values that dropout zeroes."""
    return real(default, 0.0, 0.9, "share of activations dropped in training")


def image(size: int, channels: int) -> dict[str, Setting]:
    """Sizes of a square input image."""
    return {
        "image_size": integer(size, 8, 224, "height and width of the input image in pixels"),
        "image_channels": integer(channels, 1, 16, "channels of the input image"),
    }


def bias(default: bool = True) -> Setting:
    """Whether weight layers add a bias."""
    return flag(default, "weight layers add a bias")


def image_shape(settings: Settings) -> tuple[int, ...]:
    """(channels, height, width) of one image."""
    return settings["image_channels"], settings["image_size"], settings["image_size"]


def sequence_shape(settings: Settings) -> tuple[int, ...]:
    """(length,) of one sequence of token ids."""
    return (settings["sequence"],)
