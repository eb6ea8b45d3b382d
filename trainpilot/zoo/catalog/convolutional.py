"""Convolutional models on images and sequences."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, choice, integer

_IMAGE = (Input(common.image_shape),)


def _cnn(name: str, description: str, *, size: int, channels: int, layers: int, width: int, norm: str) -> ModelEntry:
    return ModelEntry(
        name=name,
        family="cnn",
        description=description,
        builder="trainpilot.zoo.models.cnn:CNN",
        inputs=_IMAGE,
        has_conv=True,
        settings={
            **common.image(size, channels),
            "layers": integer(layers, 2, 64, "convolutions plus the final linear layer"),
            "width": integer(width, 4, 512, "channels of the first convolution; doubled at each pooling, up to 512"),
            "kernel": choice(3, (3, 5, 7), "height and width of the kernels"),
            "norm": common.norm(norm),
            "activation": common.activation(),
            "pooling": choice("max", ("max", "average", "stride"), "how the image gets smaller"),
            "head": choice("flatten", ("flatten", "global"), "what the linear layer sees: all positions or their mean"),
            "dropout": common.dropout(),
            "classes": common.classes(),
        },
    )


ENTRIES = (
    _cnn("small_cnn", "Small plain CNN for grey images", size=28, channels=1, layers=3, width=16, norm="none"),
    _cnn("cnn", "Plain CNN with batch normalisation", size=32, channels=3, layers=7, width=32, norm="batch"),
)
