"""The second profile comes from a cache; whatever changes a step makes it a new workload."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import profile, profiler
from trainpilot.profiling.cache import ProfileCache, cache_key

from .test_flops import Dynamic, summed


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the workloads that were really traced."""
    names: list[str] = []
    run = profiler._Profiler.run

    def recorded(self: Any) -> Any:
        names.append(self._workload.name)
        return run(self)

    monkeypatch.setattr(profiler._Profiler, "run", recorded)
    monkeypatch.setattr(profiler, "_cache", ProfileCache())
    return names


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 2))


def workload(module: nn.Module, **options: Any) -> tp.Workload:
    return tp.Workload(module, **{"example_inputs": torch.randn(3, 4), **options})


def test_second_profile_is_answered_from_the_cache(traced: list[str]) -> None:
    module = model()
    first = profile(workload(module))
    second = profile(workload(module, label="again", epochs=3, dataset_size=7))
    assert len(traced) == 1
    assert (second.name, second.epochs, second.dataset_size) == ("again", 3, 7)
    assert second.op_groups == first.op_groups


def replace_layer(module: nn.Sequential) -> None:
    module[2] = nn.Linear(8, 2)


def share_weight(module: nn.Sequential) -> None:
    module[0].weight = nn.Parameter(torch.randn(8, 4))


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module[0].requires_grad_(False),
        lambda module: module.eval(),
        lambda module: module[1].train(False),
        lambda module: setattr(module[1], "p", 0.5),
        replace_layer,
        share_weight,
        lambda module: module.append(nn.ReLU()),
        lambda module: module[0].register_forward_hook(lambda *_: None),
        lambda module: module[0].register_buffer("extra", torch.zeros(2)),
    ],
)
def test_change_of_the_model_is_seen(traced: list[str], change: Callable[[nn.Sequential], object]) -> None:
    module = model()
    profile(workload(module))
    change(module)
    profile(workload(module))
    assert len(traced) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd"},
        {"example_inputs": torch.randn(5, 4)},
        {"dtype": "bfloat16"},
        {"loss": summed},
        {"targets": torch.zeros(3, 2)},
        {"example_inputs": torch.randn(3, 4, requires_grad=True)},
        {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1)},
    ],
)
def test_change_of_the_workload_is_seen(traced: list[str], options: dict[str, Any]) -> None:
    module = model()
    profile(workload(module))
    profile(workload(module, **options))
    assert len(traced) == 2


def test_weights_and_input_values_do_not_count(traced: list[str]) -> None:
    module = model()
    profile(workload(module))
    with torch.no_grad():
        module[0].weight.add_(1)
    profile(workload(module, example_inputs=torch.randn(3, 4)))
    assert len(traced) == 1


def test_input_values_count_where_the_profile_depends_on_them(traced: list[str]) -> None:
    module, x = Dynamic(), torch.randn(4, 8)
    assert profile(workload(module, example_inputs=x, loss=summed)).forward_flops == 3_072
    profile(workload(module, example_inputs=x, loss=summed))
    assert len(traced) == 1
    x.mul_(1e-6)
    assert profile(workload(module, example_inputs=x, loss=summed)).forward_flops == 0
    other = profile(workload(module, example_inputs=torch.randn(4, 8), loss=summed))
    assert (other.forward_flops, len(traced)) == (3_072, 3)


class Configured(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.l = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(self.config.repeats):
            x = self.l(x)
        return x


class Config:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats


def test_configuration_object_is_looked_into(traced: list[str]) -> None:
    module = Configured(Config(1))
    first = profile(workload(module))
    module.config.repeats = 3
    assert profile(workload(module)).forward_flops == 3 * first.forward_flops


def test_builders_with_different_closures_are_different(traced: list[str]) -> None:
    def builder(config: Config) -> Callable[[], nn.Module]:
        return lambda: Configured(config)

    one, three = builder(Config(1)), builder(Config(3))
    profiles = [profile(workload(build)) for build in (one, three, one)]  # type: ignore[arg-type]
    assert [p.forward_flops for p in profiles] == [96, 288, 96]
    assert len(traced) == 2


def test_zoo_settings_are_part_of_the_key(traced: list[str]) -> None:
    small, large = (tp.Workload("mlp", batch_size=2, settings={"layers": n}) for n in (2, 3))
    assert profile(small).params < profile(large).params
    assert profile(tp.Workload("mlp", batch_size=2, settings={"layers": 2})).params == profile(small).params
    assert len(traced) == 2


def test_cache_keeps_no_model_alive(traced: list[str]) -> None:
    module = model()
    reference = weakref.ref(module)
    profile(workload(module))
    del module
    gc.collect()
    assert reference() is None


def test_least_recently_used_entry_makes_room() -> None:
    cache = ProfileCache(most_entries=2)
    modules = [model() for _ in range(3)]
    keys = [cache_key(workload(module)) for module in modules]
    assert all(key is not None for key in keys)
    result = profile(workload(modules[0]))
    cache.put(keys[0], result)  # type: ignore[arg-type]
    cache.put(keys[1], result)  # type: ignore[arg-type]
    assert cache.get(keys[0]) is result  # type: ignore[arg-type]
    cache.put(keys[2], result)  # type: ignore[arg-type]
    assert [cache.get(key) is result for key in keys] == [True, False, True]  # type: ignore[arg-type]
