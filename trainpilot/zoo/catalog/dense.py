"""Models made of linear layers."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, choice, integer

_FLAT = (Input(lambda s: (s["features"],)),)


def _mlp(name: str, description: str, *, width: int, layers: int) -> ModelEntry:
    return ModelEntry(
        name=name,
        family="mlp",
        description=description,
        builder="trainpilot.zoo.models.mlp:MLP",
        inputs=_FLAT,
        settings={
            "features": integer(784, 1, 65_536, "values in one input sample"),
            "layers": integer(layers, 1, 64, "linear layers, the output layer included"),
            "width": integer(width, 8, 8192, "units of each hidden layer"),
            "activation": common.activation(),
            "norm": choice("none", ("none", "batch", "layer"), "normalisation after each hidden layer"),
            "dropout": common.dropout(),
            "bias": common.bias(),
            "classes": common.classes(),
        },
    )


ENTRIES = (
    _mlp("mlp", "Multi-layer perceptron on flat inputs", width=256, layers=3),
    _mlp("large_mlp", "Large dense network: wide linear layers", width=2048, layers=6),
)
