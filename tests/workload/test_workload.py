"""Workloads: identity, batch size, round trip to another process."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainpilot.errors import ModelError, UnknownNameError, UsageError
from trainpilot.workload import InputSpec, Workload, build_optimizer, optimizer_names


class Net(nn.Module):
    def __init__(self, width: int = 8, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.layer = nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def test_batch_size_comes_from_the_inputs_unless_given() -> None:
    x = torch.zeros(6, 4)
    assert Workload(Net(), x).batch_size == 6
    assert Workload(Net(), x, batch_size=6).batch_size == 6
    assert Workload(Net(), lambda n: torch.zeros(n, 4)).batch_size == 32


def test_fixed_inputs_of_another_batch_size_are_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(6, 4\) hold no batch of 32"):
        Workload(Net(), torch.zeros(6, 4), batch_size=32)
    # Any dimension may be the batch: here it is the second, as recurrent layers have it.
    assert Workload(nn.LSTM(4, 8), torch.zeros(10, 3, 4), batch_size=3).batch_size == 3


def test_the_users_module_is_not_copied_and_a_built_one_is_owned() -> None:
    net = Net()
    resolved = Workload(net, torch.zeros(2, 4)).resolve()
    assert resolved.model is net
    assert not resolved.owned
    assert Workload(Net, torch.zeros(2, 4)).resolve().owned


def test_identity_depends_on_what_a_step_computes() -> None:
    x = torch.zeros(2, 4)
    base = Workload(Net(), x)
    assert base.workload_hash == Workload(Net(), torch.ones(2, 4)).workload_hash  # values do not count
    frozen = Net()
    frozen.layer.bias.requires_grad_(False)
    others = [
        Workload(Net(width=9), x),
        Workload(Net(scale=2.0), x),
        Workload(Net().eval(), x),
        Workload(frozen, x),
        Workload(Net(), torch.zeros(3, 4)),
        Workload(Net(), x, optimizer="sgd"),
        Workload(Net(), x, dtype="bfloat16"),
        Workload(Net(), x, loss=lambda outputs, _: outputs.sum()),
    ]
    hashes = [base.workload_hash, *(other.workload_hash for other in others)]
    assert len(set(hashes)) == len(hashes)
    # The plan does not change a step.
    assert base.workload_hash == Workload(Net(), x, dataset_size=7, epochs=3).workload_hash
    assert base.model_hash == Workload(Net(), torch.zeros(5, 4), optimizer="sgd").model_hash


def test_tied_weights_change_the_identity() -> None:
    def build(tied: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        if tied:
            model[1].weight = model[0].weight
        return model

    x = torch.zeros(2, 4)
    assert Workload(build(True), x).model_hash != Workload(build(False), x).model_hash


def test_a_library_in_a_closure_is_only_its_name() -> None:
    import torch as library

    x = torch.zeros(2, 4)
    assert Workload(lambda: library.nn.Linear(4, 3), x).model_hash


def test_builders_with_other_constants_are_other_models() -> None:
    def builder(width: int):
        return lambda: nn.Linear(4, width)

    x = torch.zeros(2, 4)
    assert Workload(builder(3), x).model_hash != Workload(builder(5), x).model_hash
    assert Workload(builder(3), x).model_hash == Workload(builder(3), x).model_hash


class Config:
    def __init__(self, width: int) -> None:
        self.width = width

    def build(self) -> nn.Module:
        return nn.Linear(4, self.width)


def build(width: int) -> nn.Module:
    return nn.Linear(4, width)


class Builder:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self) -> nn.Module:
        return nn.Linear(4, self.width)


def _with_default(config: Config) -> Callable[[], nn.Module]:
    return lambda chosen=config: chosen.build()


@pytest.mark.parametrize(
    "make",
    [
        lambda width: functools.partial(build, width),
        lambda width: functools.partial(build, width=width),
        lambda width: Config(width).build,
        lambda width: _with_default(Config(width)),
        lambda width: Builder(width),
        lambda width: (lambda config: lambda: config.build())(Config(width)),
    ],
)
def test_what_a_builder_is_bound_to_is_part_of_its_identity(make: Callable[[int], Callable[[], nn.Module]]) -> None:
    x = torch.zeros(2, 4)
    assert Workload(make(3), x).model_hash == Workload(make(3), x).model_hash
    assert Workload(make(3), x).model_hash != Workload(make(5), x).model_hash


def test_identity_follows_a_change_of_the_module() -> None:
    model = Net()
    workload = Workload(model, torch.zeros(2, 4))
    before = workload.model_hash
    model.eval()
    assert workload.model_hash != before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optimizer": "adamm"}, UnknownNameError, "did you mean adam"),
        ({"dtype": "float8"}, UsageError, "valid are float32"),
        ({"batch_size": 0}, UsageError, "batch_size must be"),
        ({"classes": 0}, UsageError, "classes must be at least 1"),
    ],
)
def test_wrong_settings_are_refused_at_once(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Workload(Net(), torch.zeros(2, 4), **arguments)  # type: ignore[arg-type]


def test_live_objects_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(ModelError, match="path/file.py:build"):
        Workload(Net(), torch.zeros(2, 4)).to_spec()


def test_spec_round_trip() -> None:
    workload = Workload("package.module:build", batch_size=8, input_spec=InputSpec.parse("3x8x8"), classes=5)
    again = Workload.from_spec(workload.to_spec())
    assert again == workload or again.to_spec() == workload.to_spec()
    assert again.input_spec == InputSpec((3, 8, 8))
    with pytest.raises(UsageError, match="unknown field 'colour'"):
        Workload.from_spec({"model": "x:y", "colour": 1})


@pytest.mark.parametrize("text", ["", "3x", "0x4", "axb", "3,4", "-1"])
def test_unreadable_input_shapes(text: str) -> None:
    with pytest.raises(UsageError):
        InputSpec.parse(text)


@pytest.mark.parametrize("name", optimizer_names())
def test_every_named_optimizer_trains(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = build_optimizer(name, model)
    before = model.weight.detach().clone()
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)


def test_naming_a_zoo_model_loads_no_torch() -> None:
    code = (
        "import sys, trainpilot\n"
        "trainpilot.Workload\n"
        "assert not {'torch', 'xgboost'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("model", [5, None, 1.5, [nn.Linear(4, 8)]])
def test_a_model_that_is_neither_module_nor_builder_nor_name_is_refused(model: object) -> None:
    with pytest.raises(UsageError, match="model must be a module, a function that builds one, a zoo name"):
        Workload(model, torch.zeros(6, 4))  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [-1.0, 0.0, float("nan"), float("inf")])
def test_a_learning_rate_must_be_above_zero(rate: float) -> None:
    with pytest.raises(UsageError, match="learning_rate must be above 0 and finite"):
        Workload(Net(), torch.zeros(6, 4), learning_rate=rate)
