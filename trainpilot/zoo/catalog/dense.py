"""Models made of linear layers."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, choice, integer


def _mlp(name: str, description: str, *, width: int, layers: int) -> ModelEntry:
    return ModelEntry(
        name=name,
        family="mlp",
        description=description,
        builder="trainpilot.zoo.models.mlp:MLP",
        inputs=(Input(lambda s: (s["features"],)),),
        settings={
            "features": integer(784, 1, 1_000_000, "values of one sample"),
            "layers": integer(layers, 1, 64, "linear layers, the output layer included"),
            "width": integer(width, 8, 16_384, "units of each hidden layer"),
            "activation": common.activation(),
            "norm": choice("none", ("none", "batch", "layer"), "normalisation after each hidden layer"),
            "dropout": common.dropout(),
            "bias": common.bias(),
            "classes": common.classes(),
        },
    )


_MIXER = ModelEntry(
    name="mixer",
    family="mixer",
    description="MLP-Mixer: MLPs over positions and over channels of image patches",
    builder="trainpilot.zoo.models.mixer:Mixer",
    inputs=common.IMAGE_INPUT,
    has_conv=True,
    contradiction=common.patch_contradiction,
    settings={
        **common.image(32),
        "patch": integer(4, 1, 64, "height and width of a patch; must divide the image"),
        "layers": integer(6, 1, 64, "mixer blocks"),
        "width": integer(128, 16, 4096, "size of the vector of each patch"),
        "token_hidden": integer(64, 8, 8192, "units of the MLP over positions"),
        "hidden": integer(512, 16, 16_384, "units of the MLP over channels"),
        "activation": common.activation("gelu"),
        "dropout": common.dropout(),
        "classes": common.classes(),
    },
)

_DLRM = ModelEntry(
    name="dlrm",
    family="recommendation",
    description="Embedding tables of categories combined with an MLP of dense features",
    builder="trainpilot.zoo.models.recommendation:DLRM",
    inputs=(Input(lambda s: (s["features"],)), Input(lambda s: (s["tables"],), ids="rows")),
    settings={
        "features": integer(13, 1, 4096, "dense values of one sample"),
        "tables": integer(8, 1, 256, "categories of one sample, each with an embedding table"),
        "rows": integer(10_000, 2, 5_000_000, "rows of each table"),
        "embedding": integer(32, 4, 1024, "size of the embedding vectors"),
        "layers": integer(3, 1, 16, "linear layers of each of the two MLPs, the output layer included"),
        "width": integer(256, 8, 8192, "units of the hidden layers"),
        "interaction": choice("dot", ("dot", "concatenate"), "how the vectors are combined"),
        "classes": common.classes(2),
    },
)

ENTRIES = (
    _mlp("mlp", "Multi-layer perceptron on flat inputs", width=256, layers=3),
    _mlp("large_mlp", "Large dense network: wide linear layers", width=2048, layers=6),
    _MIXER,
    _DLRM,
)
