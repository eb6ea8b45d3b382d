"""Nested inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from trainpilot.errors import UsageError
from trainpilot.workload import ModelInputs, batch_size_of, map_tensors, signature, tensor_leaves

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Box:
    content: Any
    label: str = "box"


def test_inputs_follow_the_convention() -> None:
    tensor = torch.zeros(2)
    assert ModelInputs.of(tensor) == ModelInputs((tensor,), {})
    assert ModelInputs.of((tensor, 1)).args == (tensor, 1)
    assert ModelInputs.of({"x": tensor}).kwargs == {"x": tensor}
    both = ModelInputs((tensor,), {"scale": 2})
    assert ModelInputs.of(both) is both
    pair = Pair(tensor, None)  # a named tuple is one argument
    assert ModelInputs.of(pair).args == (pair,)
    with pytest.raises(UsageError, match="1 is not a name"):
        ModelInputs.of({1: tensor})


def test_leaves_are_found_in_order_and_mapped_without_touching_the_rest() -> None:
    marker = object()
    value = {
        "a": [torch.tensor(1.0), (torch.tensor(2.0), marker)],
        "b": Box(Pair(torch.tensor(3.0), None)),
        "c": OrderedDict(x=torch.tensor(4.0)),
    }
    assert [leaf.item() for leaf in tensor_leaves(value)] == [1.0, 2.0, 3.0, 4.0]
    doubled = map_tensors(lambda leaf: leaf * 2, value)
    assert [leaf.item() for leaf in tensor_leaves(doubled)] == [2.0, 4.0, 6.0, 8.0]
    assert [leaf.item() for leaf in tensor_leaves(value)] == [1.0, 2.0, 3.0, 4.0]
    assert doubled["a"][1][1] is marker
    assert isinstance(doubled["b"], Box)
    assert isinstance(doubled["b"].content, Pair)
    assert type(doubled["c"]) is OrderedDict


def test_batch_size_and_signature() -> None:
    value = ModelInputs(
        ({"scalar": torch.tensor(1.0), "x": torch.zeros(4, 8)},), {"y": torch.zeros(4, dtype=torch.int64)}
    )
    assert batch_size_of(value) == 4
    assert batch_size_of({"a": 1}) is None
    assert signature(value) == [[[], "float32"], [[4, 8], "float32"], [[4], "int64"]]
