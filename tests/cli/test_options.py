"""Options that describe a workload."""

from __future__ import annotations

import pytest

from trainpilot.cli.options import WorkloadOptions
from trainpilot.errors import UsageError
from trainpilot.workload.pairs import parse_settings


def test_settings_are_read_by_kind() -> None:
    pairs = ["layers=3", "dropout=0.5", "bias=true", "norm=False", "activation=gelu", "name=a=b"]
    assert parse_settings(pairs) == {
        "layers": 3,
        "dropout": 0.5,
        "bias": True,
        "norm": False,
        "activation": "gelu",
        "name": "a=b",
    }


@pytest.mark.parametrize("pairs", [["layers"], ["=3"], ["a=1", "a=2"]])
def test_malformed_settings_are_refused(pairs: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_settings(pairs)


def test_model_is_named_once() -> None:
    assert WorkloadOptions(model="a").model_name() == "a"
    assert WorkloadOptions(model_argument="a").model_name() == "a"
    with pytest.raises(UsageError, match="name the model once"):
        WorkloadOptions(model="a", model_argument="b").model_name()
    with pytest.raises(UsageError, match="no model given.*small_cnn"):
        WorkloadOptions().model_name()


def test_input_options_belong_to_own_models() -> None:
    with pytest.raises(UsageError, match="small_cnn has its own input"):
        WorkloadOptions(model="small_cnn", input_shape="3x8x8").workload()
    with pytest.raises(UsageError, match="not both"):
        WorkloadOptions(model="a:b", input_shape="3x8x8", token_ids=4).workload()
    workload = WorkloadOptions(model="a:b", token_ids=16, vocab=100, batch_size=4).workload()
    assert workload.input_spec is not None
    assert workload.input_spec.example_inputs(4).shape == (4, 16)
