"""Models that are one operator, so that no class of operators is known from one family only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainpilot.zoo.catalog import common
from trainpilot.zoo.entry import Input, ModelEntry, Setting, Settings, Target, choice, flag, integer, real

_LOSS_INSIDE = Target("none", classes=None)
_REPEATS = integer(4, 1, 64, "how often the operator is applied to its own output")
_KERNEL = choice(3, (1, 3, 5, 7), "height and width of the kernel")
_STRIDE = choice(1, (1, 2), "step of the kernel")


def _channels(default: int, help_text: str = "channels") -> Setting:
    return integer(default, 1, 2048, help_text)


def _size(default: int) -> Setting:
    return integer(default, 1, 512, "height and width of the image")


def _operator(
    name: str,
    builder: str,
    description: str,
    settings: Mapping[str, Setting],
    *shapes: Callable[[Settings], tuple[int, ...]],
    ids: str | None = None,
    target: Target = _LOSS_INSIDE,
    has_conv: bool = False,
    has_rnn: bool = False,
    contradiction: Callable[[Settings], str | None] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> ModelEntry:
    return ModelEntry(
        name=f"op_{name}",
        family="operator",
        description=description,
        builder=f"trainpilot.zoo.models.operators:{builder}",
        fixed=fixed or {},
        settings=settings,
        inputs=tuple(Input(shape, ids) for shape in shapes),
        target=target,
        has_conv=has_conv,
        has_rnn=has_rnn,
        contradiction=contradiction,
    )


def _groups_contradiction(settings: Settings) -> str | None:
    for name in ("inputs", "outputs", "channels"):
        if name in settings and settings[name] % settings["groups"]:
            return f"{name} {settings[name]} is not divisible by {settings['groups']} groups"
    return None


def _image(settings: Settings) -> tuple[int, ...]:
    return settings["channels"], settings["size"], settings["size"]


def _input_image(settings: Settings) -> tuple[int, ...]:
    return settings["inputs"], settings["size"], settings["size"]


def _rows(settings: Settings) -> tuple[int, ...]:
    return settings["positions"], settings["width"]


def _matrix(settings: Settings) -> tuple[int, ...]:
    return settings["rows"], settings["columns"]


def _elements(settings: Settings) -> tuple[int, ...]:
    return (settings["elements"],)


def _ids(settings: Settings) -> tuple[int, ...]:
    return (settings["length"],)


_ELEMENTS = integer(65_536, 1, 50_000_000, "values of one sample")
_NORM = {
    "width": integer(256, 1, 65_536, "values that are normalised together"),
    "positions": integer(64, 1, 8192, "positions of one sample"),
    "repeats": _REPEATS,
}
_IMAGE = {"channels": _channels(64), "size": _size(28)}
_MATRIX = {
    "rows": integer(256, 1, 16_384, "rows of the matrix of one sample"),
    "columns": integer(256, 1, 16_384, "columns of the matrix of one sample"),
}


def _elementwise(function: str, description: str) -> ModelEntry:
    settings = {"elements": _ELEMENTS, "repeats": _REPEATS}
    return _operator(function, "elementwise", description, settings, _elements, fixed={"function": function})


def _recurrent(cell: str, description: str) -> ModelEntry:
    return _operator(
        cell,
        "recurrent",
        description,
        {
            "inputs": integer(128, 1, 4096, "values of each step"),
            "width": integer(128, 1, 4096, "units"),
            "length": integer(32, 1, 2048, "steps"),
            "layers": integer(1, 1, 8, "stacked recurrent layers"),
            "bidirectional": flag(False, "a second pass from the end to the start"),
        },
        lambda s: (s["length"], s["inputs"]),
        has_rnn=True,
        fixed={"cell": cell},
    )


def _pool(kind: str, description: str) -> ModelEntry:
    return _operator(
        f"{kind}_pool2d",
        "pool2d",
        description,
        {**_IMAGE, "kernel": choice(3, (2, 3, 5), "height and width of the windows"), "stride": _STRIDE},
        _image,
        fixed={"kind": kind},
    )


ENTRIES = (
    _operator(
        "linear",
        "linear",
        "Linear layers",
        {
            "inputs": integer(256, 1, 16_384, "values of each position"),
            "outputs": integer(256, 1, 65_536, "units"),
            "positions": integer(1, 1, 4096, "positions of one sample"),
            "bias": common.bias(),
            "repeats": integer(2, 1, 4, "layers, leading there and back"),
        },
        lambda s: (s["positions"], s["inputs"]),
    ),
    _operator(
        "matmul",
        "Matmul",
        "Product of two batches of matrices",
        {
            "m": integer(64, 1, 4096, "rows of the left matrix"),
            "k": integer(64, 1, 4096, "columns of the left matrix"),
            "n": integer(64, 1, 4096, "columns of the right matrix"),
            "transposed": flag(False, "the right matrix is stored transposed"),
        },
        lambda s: (s["m"], s["k"]),
        lambda s: (s["n"], s["k"]) if s["transposed"] else (s["k"], s["n"]),
    ),
    _operator(
        "conv2d",
        "conv2d",
        "Two-dimensional convolution",
        {
            "inputs": _channels(64, "input channels"),
            "outputs": _channels(64, "output channels"),
            "size": _size(28),
            "kernel": _KERNEL,
            "stride": _STRIDE,
            "groups": integer(1, 1, 512, "groups; must divide both channels"),
            "bias": common.bias(),
        },
        _input_image,
        has_conv=True,
        contradiction=_groups_contradiction,
    ),
    _operator(
        "depthwise_conv2d",
        "depthwise_conv2d",
        "Convolution with one filter a channel",
        {**_IMAGE, "kernel": _KERNEL, "stride": _STRIDE, "bias": common.bias()},
        _image,
        has_conv=True,
    ),
    _operator(
        "conv1d",
        "conv1d",
        "One-dimensional convolution",
        {
            "inputs": _channels(64, "input channels"),
            "outputs": _channels(64, "output channels"),
            "length": integer(128, 1, 65_536, "steps"),
            "kernel": choice(3, (1, 3, 5, 7, 9, 15), "steps that the kernel sees"),
            "stride": _STRIDE,
            "dilation": integer(1, 1, 64, "distance of the steps that the kernel sees"),
            "groups": integer(1, 1, 512, "groups; must divide both channels"),
        },
        lambda s: (s["inputs"], s["length"]),
        has_conv=True,
        contradiction=_groups_contradiction,
    ),
    _operator(
        "conv_transpose2d",
        "conv_transpose2d",
        "Transposed convolution that doubles the image",
        {
            "inputs": _channels(64, "input channels"),
            "outputs": _channels(32, "output channels"),
            "size": _size(14),
            "kernel": choice(2, (2, 4), "height and width of the kernel"),
        },
        _input_image,
        has_conv=True,
    ),
    _operator(
        "attention",
        "AttentionOperator",
        "Attention without projections",
        {
            "heads": integer(4, 1, 128, "attention heads"),
            "head_size": integer(32, 4, 256, "size of each head"),
            "length": integer(64, 1, 8192, "positions"),
            "attention": common.ATTENTION,
            "causal": flag(False, "positions see only earlier ones"),
        },
        lambda s: (s["length"], 3 * s["heads"] * s["head_size"]),
    ),
    _recurrent("lstm", "LSTM layers"),
    _recurrent("gru", "GRU layers"),
    _recurrent("rnn", "Plain recurrent layers"),
    _operator(
        "embedding",
        "EmbeddingOperator",
        "Look-up of token ids",
        {
            "rows": integer(10_000, 2, 5_000_000, "rows of the table"),
            "width": integer(128, 1, 4096, "size of the vectors"),
            "length": integer(64, 1, 8192, "ids of one sample"),
        },
        _ids,
        ids="rows",
    ),
    _operator(
        "embedding_bag",
        "EmbeddingBagOperator",
        "Look-up and combination of token ids",
        {
            "rows": integer(10_000, 2, 5_000_000, "rows of the table"),
            "width": integer(128, 1, 4096, "size of the vectors"),
            "length": integer(64, 1, 8192, "ids of one sample"),
            "mode": choice("mean", ("mean", "sum"), "how the vectors of a sample are combined"),
        },
        _ids,
        ids="rows",
    ),
    _operator("layer_norm", "layer_norm", "Layer norm", _NORM, _rows),
    _operator("rms_norm", "rms_norm", "Root-mean-square norm, written out", _NORM, _rows),
    _operator("softmax", "softmax", "Softmax", _NORM, _rows),
    _operator("batch_norm", "batch_norm", "Batch norm of images", {**_IMAGE, "repeats": _REPEATS}, _image),
    _operator(
        "group_norm",
        "group_norm",
        "Group norm of images",
        {**_IMAGE, "groups": integer(32, 1, 512, "groups; must divide the channels"), "repeats": _REPEATS},
        _image,
        contradiction=_groups_contradiction,
    ),
    _elementwise("relu", "ReLU"),
    _elementwise("gelu", "GELU"),
    _elementwise("silu", "SiLU"),
    _elementwise("tanh", "Hyperbolic tangent"),
    _elementwise("sigmoid", "Logistic function"),
    _elementwise("add", "Sum of two tensors"),
    _operator(
        "mul",
        "elementwise",
        "Product of two tensors",
        {"elements": _ELEMENTS},
        _elements,
        fixed={"function": "mul", "repeats": 1},  # squares, so repeats would overflow
    ),
    _operator(
        "dropout",
        "dropout",
        "Dropout",
        {"elements": _ELEMENTS, "share": real(0.1, 0.01, 0.9, "share of values dropped"), "repeats": _REPEATS},
        _elements,
    ),
    _pool("max", "Maximum of windows of an image"),
    _pool("avg", "Mean of windows of an image"),
    _operator(
        "upsample",
        "upsample",
        "Doubling an image",
        {**_IMAGE, "mode": choice("nearest", ("nearest", "bilinear"), "how pixels are interpolated")},
        _image,
    ),
    _operator(
        "cat",
        "cat",
        "Joining tensors",
        {**_MATRIX, "parts": integer(4, 2, 64, "tensors that are joined")},
        _matrix,
    ),
    _operator(
        "transpose_copy", "transpose_copy", "Writing out a transposed matrix", {**_MATRIX, "repeats": _REPEATS}, _matrix
    ),
    _operator(
        "reduce",
        "reduce",
        "Mean over one dimension",
        {**_MATRIX, "axis": choice("rows", ("rows", "columns"), "what is averaged over")},
        _matrix,
    ),
    _operator(
        "cross_entropy",
        "CrossEntropyOperator",
        "Cross-entropy of class scores",
        {"classes": integer(1000, 2, 300_000, "number of classes")},
        lambda s: (s["classes"],),
        target=Target(),
    ),
    _operator(
        "optimizer",
        "OptimizerOperator",
        "Many parameters and next to no forward pass",
        {
            "tensors": integer(16, 1, 1024, "parameter tensors"),
            "elements": integer(65_536, 1, 50_000_000, "values of each"),
        },
        lambda s: (1,),  # noqa: ARG005
    ),
)
