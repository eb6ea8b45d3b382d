"""Settings, shapes and checks that many models share."""

from __future__ import annotations

from trainpilot.zoo.entry import Input, Setting, Settings, Target, choice, flag, integer, real

ACTIVATIONS = ("relu", "gelu", "silu", "tanh", "leaky_relu", "hardswish", "gelu_tanh", "quick_gelu")
ATTENTION = choice("sdpa", ("sdpa", "explicit"), "torch's fused attention, or matmul, softmax, matmul")
FUSED_QKV = flag(False, "one projection for queries, keys and values")
NORM_FIRST = flag(True, "normalise before attention and feed-forward instead of after")
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


def bias(default: bool = True) -> Setting:
    """Whether weight layers add a bias."""
    return flag(default, "weight layers add a bias")


def image(size: int, channels: int = 3) -> dict[str, Setting]:
    """Sizes of a square input image."""
    return {
        "image_size": integer(size, 8, 512, "height and width of the input image in pixels"),
        "image_channels": integer(channels, 1, 16, "channels of the input image"),
    }


def series(length: int, features: int) -> dict[str, Setting]:
    """Sizes of a sequence of feature vectors."""
    return {
        "sequence": integer(length, 1, 4096, "steps of one sample"),
        "features": integer(features, 1, 4096, "values of each step"),
    }


def text(length: int, vocabulary: int) -> dict[str, Setting]:
    """Sizes of a sequence of token ids."""
    return {
        "sequence": integer(length, 8, 4096, "tokens of one sample"),
        "vocabulary": integer(vocabulary, 16, 300_000, "number of different tokens"),
    }


def transformer(*, layers: int, width: int, heads: int, hidden: int) -> dict[str, Setting]:
    """Sizes of transformer blocks."""
    return {
        "layers": integer(layers, 1, 96, "transformer blocks (of each half, where there are two)"),
        "width": integer(width, 16, 8192, "size of the vector of each position"),
        "heads": integer(heads, 1, 128, "attention heads; must divide the width"),
        "hidden": integer(hidden, 16, 32_768, "units of the feed-forward layers"),
    }


def image_shape(settings: Settings) -> tuple[int, ...]:
    """(channels, height, width) of one image."""
    return settings["image_channels"], settings["image_size"], settings["image_size"]


def series_shape(settings: Settings) -> tuple[int, ...]:
    """(steps, features) of one sequence."""
    return settings["sequence"], settings["features"]


def sequence_shape(settings: Settings) -> tuple[int, ...]:
    """(length,) of one sequence of token ids."""
    return (settings["sequence"],)


IMAGE_INPUT = (Input(image_shape),)
SERIES_INPUT = (Input(series_shape),)
TEXT_INPUT = (Input(sequence_shape, ids="vocabulary"),)
NEXT_TOKEN = Target("class_per_position", sequence_shape, classes="vocabulary")


def heads_contradiction(settings: Settings) -> str | None:
    """Attention heads share the width evenly."""
    width, heads = settings["width"], settings["heads"]
    return f"width {width} is not divisible by {heads} heads" if width % heads else None


def language_contradiction(settings: Settings) -> str | None:
    """Heads share the width, and scores of shape (sequence, vocabulary) tell which of the two is which."""
    if settings["vocabulary"] == settings["sequence"]:
        return (
            f"vocabulary and sequence are both {settings['sequence']}; they must differ, because scores of shape "
            "(batch, n, n) do not tell classes from positions"
        )
    return heads_contradiction(settings) if "heads" in settings else None


def patch_contradiction(settings: Settings) -> str | None:
    """Patches fill the image."""
    size, patch = settings["image_size"], settings["patch"]
    return f"image_size {size} is not divisible by patch {patch}" if size % patch else None


def halving_contradiction(settings: Settings) -> str | None:
    """The image can be halved once for each layer."""
    size, layers = settings["image_size"], settings["layers"]
    if size % 2**layers:
        return f"image_size {size} cannot be halved {layers} times (layers); use a multiple of {2**layers}"
    return None
