"""Fitting data to a model's input, and a model's sizes to data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainpilot.errors import DataError, UsageError
from trainpilot.zoo.data.training_data import TrainingData
from trainpilot.zoo.entry import ModelEntry
from trainpilot.zoo.registry import get

Array = NDArray[Any]
_MOST_CHANNELS = 16  # the last dimension of a channel-last image; a larger one is a width


def adapt_images(x: Array, input_shape: Sequence[int]) -> Array:
    """Bring samples into the shape that a model takes.

    For images, ``input_shape`` (channels, height, width), samples may also lack the channel axis where there is one
    channel, have it last, or be flat. For flat inputs, ``input_shape`` (features,), samples of any shape with as many
    values are flattened.

    Args:
        x: Samples of shape (n, ...).
        input_shape: Shape of one sample that the model takes.

    Returns:
        float32 array of shape (n, *input_shape). 8-bit pixels are divided by 255, all other values are kept.

    Raises:
        DataError: The samples have no shape that fits.
    """
    wanted = tuple(input_shape)
    given = tuple(x.shape[1:])
    if given == wanted:
        fitted = x
    elif len(wanted) == 1 and math.prod(given) == wanted[0]:
        fitted = x.reshape(len(x), *wanted)
    elif len(wanted) == 3 and given == (*wanted[1:], wanted[0]):
        fitted = np.moveaxis(x, -1, 1)
    elif len(wanted) == 3 and ((given == wanted[1:] and wanted[0] == 1) or given == (math.prod(wanted),)):
        fitted = x.reshape(len(x), *wanted)
    else:
        raise DataError(f"samples have shape {given}; the model takes {_accepted(wanted)}")
    if x.dtype == np.uint8:
        return np.ascontiguousarray(fitted, dtype=np.float32) / np.float32(255)
    return np.ascontiguousarray(fitted, dtype=np.float32)


def _accepted(wanted: tuple[int, ...]) -> str:
    if len(wanted) != 3:
        return str(wanted)
    channels, height, width = wanted
    also = [(height, width, channels), (math.prod(wanted),), *([(height, width)] if channels == 1 else [])]
    return f"{wanted}, or {', '.join(str(shape) for shape in also)}"


def settings_for_data(name: str, settings: Mapping[str, Any], data: TrainingData) -> dict[str, Any]:
    """Set the sizes of a zoo model from the data that it will be trained on.

    Set are the size and channels of the image, the number of features or the length of a sequence, and the number of
    classes; where the model has such settings. A size that was given and is not the model's default must agree with
    the data; more classes than the data has are kept.

    Args:
        name: Zoo name.
        settings: Settings that were given.
        data: The training data.

    Returns:
        ``settings`` with the sizes added.

    Raises:
        DataError: The data has no shape that the model takes.
        UsageError: A given size contradicts the data.
    """
    entry = get(name)
    if entry.target.kind != "class":
        raise DataError(f"{name} is not trained on one label per sample; {data.name} has labels only")
    sizes = _sizes(entry, data)
    merged = dict(settings)
    for key, value in sizes.items():
        given = settings.get(key, value)
        if given != value and given != entry.settings[key].default:
            raise UsageError(f"{name}: {key}={given} was given, but the samples of {data.name} need {key}={value}")
        merged[key] = value
    if "classes" in entry.settings:
        given = settings.get("classes")
        if given is None or given == entry.settings["classes"].default:
            merged["classes"] = data.classes
        elif given < data.classes:
            raise UsageError(f"{name}: classes={given} was given, but {data.name} has {data.classes} classes")
    entry.resolve_settings(merged)
    return merged


def _sizes(entry: ModelEntry, data: TrainingData) -> dict[str, int]:
    shape = data.sample_shape
    known = entry.settings
    if len(entry.inputs) > 1:
        raise DataError(f"{entry.name} takes {len(entry.inputs)} inputs per sample; {data.name} has one")
    if entry.inputs[0].ids is not None:
        return _token_sizes(entry, data)
    if "image_size" in known:
        channels, size = _image_sizes(entry.name, shape, data.name)
        return {"image_size": size, "image_channels": channels}
    if "sequence" in known and "features" in known:
        if len(shape) != 2:
            raise DataError(f"{entry.name} takes samples of shape (steps, features); {data.name} has {shape}")
        return {"sequence": shape[0], "features": shape[1]}
    if "features" in known:
        return {"features": math.prod(shape)}
    raise DataError(f"{entry.name} cannot be trained on {data.name}")


def _token_sizes(entry: ModelEntry, data: TrainingData) -> dict[str, int]:
    shape = data.sample_shape
    if len(shape) != 1 or data.x_train.dtype.kind not in "iu":
        raise DataError(
            f"{entry.name} takes sequences of token ids (whole numbers, shape (n, length)); "
            f"{data.name} has {data.x_train.dtype} samples of shape {shape}"
        )
    lowest = min(int(data.x_train.min()), int(data.x_val.min(initial=0)))
    if lowest < 0:
        raise DataError(f"{data.name}: token ids must not be negative, got {lowest}")
    highest = max(int(data.x_train.max()), int(data.x_val.max(initial=0)))
    ids = entry.inputs[0].ids
    assert ids is not None
    least = int(entry.settings[ids].minimum or 1)
    return {"sequence": shape[0], ids: max(highest + 1, least)}


def _image_sizes(name: str, shape: tuple[int, ...], data_name: str) -> tuple[int, int]:
    """(channels, size) of square images that are channel-first, channel-last, without channels, or flat."""
    if len(shape) == 1 and math.isqrt(shape[0]) ** 2 == shape[0]:
        return 1, math.isqrt(shape[0])
    if len(shape) == 2 and shape[0] == shape[1]:
        return 1, shape[0]
    if len(shape) == 3 and shape[1] == shape[2]:
        return shape[0], shape[1]
    if len(shape) == 3 and shape[0] == shape[1] and shape[2] <= _MOST_CHANNELS:
        return shape[2], shape[0]
    raise DataError(
        f"{name} takes square images of shape (channels, size, size), (size, size, channels) or (size, size); "
        f"{data_name} has samples of shape {shape}"
    )
