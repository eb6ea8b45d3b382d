"""Objects that lead back to themselves have an identity too, and it follows what they hold."""

from __future__ import annotations

import functools
import weakref
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from trainpilot.workload import Workload
from trainpilot.workload.identity import _Walk, function_identity, module_identity


class Holding(nn.Module):
    """Holds itself in a list, a dict and an object, and its child holds a proxy of it."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.settings: dict[str, Any] = {"width": width}
        self.settings["self"] = self.settings
        self.items: list[Any] = [self, width]
        self.items.append(self.items)
        self.object = SimpleNamespace(owner=self, width=width)
        self.object.me = self.object
        self.l.parent = weakref.proxy(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x)


def test_a_cyclic_module_has_a_stable_identity() -> None:
    assert module_identity(Holding()) == module_identity(Holding())
    assert module_identity(Holding()) != module_identity(Holding(4))


def test_layers_that_all_hold_each_other_are_walked_once_each() -> None:
    layers = [nn.Linear(2, 2) for _ in range(20)]
    for layer in layers:
        layer.others = [layers]
    model = nn.Sequential(*layers)
    before = module_identity(model)
    layers[7].kernel = 5
    assert module_identity(model) != before


def test_a_function_that_closes_over_a_cycle() -> None:
    def make(width: int) -> Any:
        cyclic: list[Any] = [width]
        cyclic.append(cyclic)
        return lambda: cyclic

    assert function_identity(make(1)) == function_identity(make(1))
    assert function_identity(make(1)) != function_identity(make(2))


def test_what_holds_no_cycle_is_written_out_however_often_it_occurs() -> None:
    shared = {"a": [1, 2, (3,)]}
    held = [shared, shared, SimpleNamespace(x=1, y=SimpleNamespace(z=shared))]
    written = {"a": [3, 1, 2, [1, 3]]}
    inner = ["types.SimpleNamespace", {"z": written}]
    assert _Walk().value(held) == [3, written, written, ["types.SimpleNamespace", {"x": 1, "y": inner}]]


def test_optimizers_made_by_two_functions_of_one_name_are_two_workloads():
    def workload(optimizer):
        return Workload(nn.Linear(2, 2), torch.ones(1, 2), optimizer=optimizer)

    sgd, adam = (lambda p: torch.optim.SGD(p, lr=0.1)), (lambda p: torch.optim.Adam(p))
    momentum = [functools.partial(torch.optim.SGD, lr=0.1, momentum=value) for value in (0.0, 0.9)]
    hashes = {workload(made).workload_hash for made in (sgd, adam, *momentum, torch.optim.Adam, "adam")}
    assert len(hashes) == 6
    assert workload(lambda p: torch.optim.SGD(p, lr=0.1)).workload_hash == workload(sgd).workload_hash
