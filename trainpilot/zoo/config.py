"""The ``model_config`` dict of the documented API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainpilot.errors import UnknownNameError, UsageError
from trainpilot.zoo.registry import get

_FLAGS = ("has_conv", "has_rnn")


def from_model_config(model_config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Read a model configuration such as ``{"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}``.

    ``name`` is a zoo name; all other keys are optional. ``layers`` is the setting of that name and counts the weight
    layers of the backbone, as the setting's help says: for ``small_cnn`` the convolutions plus the final linear layer,
    for ``mlp`` the linear layers, for recurrent models the stacked recurrent layers, for transformers the blocks.
    ``has_conv`` and ``has_rnn`` do not choose anything: they must agree with the model. Any further key is a setting
    of the model.

    Args:
        model_config: The configuration.

    Returns:
        The zoo name, and the settings that were given (defaults are not filled in).

    Raises:
        UnknownNameError: The name or a key does not exist; the valid ones are listed.
        UsageError: The name is missing, a value is wrong, or the configuration contradicts the model.
    """
    if not isinstance(model_config, Mapping):
        raise UsageError(f"model_config must be a dict with a name, got {type(model_config).__name__}")
    if "name" not in model_config:
        raise UsageError('model_config has no "name"; for example {"name": "small_cnn", "layers": 3}')
    entry = get(model_config["name"])
    for key in _FLAGS:
        value, truth = model_config.get(key), getattr(entry, key)
        if value is None:
            continue
        if not isinstance(value, bool):
            raise UsageError(f"model_config: {key} must be true or false, got {value!r}")
        if value is not truth:
            raise UsageError(
                f"model_config: {entry.name} has has_conv={entry.has_conv} and has_rnn={entry.has_rnn}, "
                f"but {key}={value} was given"
            )
    settings = {key: value for key, value in model_config.items() if key != "name" and key not in _FLAGS}
    for key in settings:
        if key == "layers" and key not in entry.settings:
            raise UsageError(f"model_config: {entry.name} is a single operator without layers; leave layers out")
        if key not in entry.settings:
            raise UnknownNameError(f"key of model_config for {entry.name}", key, ("name", *_FLAGS, *entry.settings))
    entry.resolve_settings(settings)
    return entry.name, settings
