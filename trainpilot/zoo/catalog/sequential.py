"""Recurrent models and classifiers of text."""

from __future__ import annotations

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import ModelEntry, choice, flag, integer

_LAYERS = integer(1, 1, 8, "stacked recurrent layers")


def _classifier(cell: str, description: str) -> ModelEntry:
    return ModelEntry(
        name=cell,
        family="rnn",
        description=description,
        builder="trainpilot.zoo.models.recurrent:RecurrentClassifier",
        fixed={"cell": cell},
        inputs=common.SERIES_INPUT,
        has_rnn=True,
        settings={
            **common.series(28, 28),
            "layers": _LAYERS,
            "width": integer(128, 8, 4096, "units of each recurrent layer"),
            "bidirectional": flag(False, "a second pass from the end to the start"),
            "dropout": common.dropout(),
            "classes": common.classes(),
        },
    )


def _language_model(cell: str, description: str) -> ModelEntry:
    return ModelEntry(
        name=f"{cell}_lm",
        family="rnn",
        description=description,
        builder="trainpilot.zoo.models.recurrent:RecurrentLanguageModel",
        fixed={"cell": cell},
        inputs=common.TEXT_INPUT,
        target=common.NEXT_TOKEN,
        has_rnn=True,
        contradiction=common.language_contradiction,
        settings={
            **common.text(32, 10_000),
            "layers": integer(2, 1, 8, _LAYERS.help),
            "width": integer(128, 8, 4096, "units of each recurrent layer and size of the embedding"),
            "tied": flag(False, "the output layer shares the weights of the embedding"),
            "dropout": common.dropout(0.1),
        },
    )


_TEXT_BAG = ModelEntry(
    name="text_embedding",
    family="text",
    description="Mean of token embeddings and linear layers (fastText-like)",
    builder="trainpilot.zoo.models.text:TextBag",
    inputs=common.TEXT_INPUT,
    settings={
        **common.text(64, 20_000),
        "embedding": integer(64, 4, 1024, "size of the embedding vectors"),
        "mode": choice("mean", ("mean", "sum"), "how the vectors of a text are combined"),
        "layers": integer(2, 1, 16, "linear layers after the embedding, the output layer included"),
        "width": integer(128, 8, 4096, "units of the hidden layers"),
        "activation": common.activation(),
        "dropout": common.dropout(),
        "classes": common.classes(4),
    },
)


def _text_cnn() -> ModelEntry:
    return ModelEntry(
        name="text_cnn",
        family="text",
        description="Convolutions of three widths over token embeddings",
        builder="trainpilot.zoo.models.text:TextCNN",
        inputs=common.TEXT_INPUT,
        has_conv=True,
        settings={
            **common.text(64, 20_000),
            "embedding": integer(128, 4, 1024, "size of the embedding vectors"),
            "width": integer(100, 4, 1024, "channels of each convolution"),
            "dropout": common.dropout(0.5),
            "classes": common.classes(4),
        },
    )


ENTRIES = (
    _classifier("lstm", "LSTM that classifies a sequence of feature vectors"),
    _classifier("gru", "GRU that classifies a sequence of feature vectors"),
    _classifier("rnn", "Plain recurrent network that classifies a sequence of feature vectors"),
    _language_model("lstm", "LSTM language model"),
    _language_model("gru", "GRU language model"),
    _TEXT_BAG,
    _text_cnn(),
)
