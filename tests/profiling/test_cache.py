"""The second profile comes from a cache; whatever changes a step makes it a new workload."""

from __future__ import annotations

import contextlib
import functools
import gc
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.errors import ModelError
from trainpilot.profiling import profile, profiler
from trainpilot.profiling.cache import ProfileCache, cache_key
from trainpilot.profiling.trees import read_tree

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
    x.data.mul_(1e-6)  # counts no version
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


# Linear(4, 4) on 3 samples: 2 * 3 * 4 * 4 FLOPs.
ONE = 96
FACTOR = 1
OPTIONS = {"repeats": [1]}


class Repeated(nn.Module):
    """Applies its layer as often as ``count`` says."""

    count = 1

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        for _ in range(self.repeats()):
            x = self.l(x)
        return x

    def repeats(self) -> int:
        return self.count


class ByDict(Repeated):
    def repeats(self) -> int:
        return self.options["repeats"]


class ByNestedDict(Repeated):
    def repeats(self) -> int:
        return self.options["a"]["repeats"][0]


class ByObject(Repeated):
    def repeats(self) -> int:
        return self.config.repeats.repeats


class ByArray(Repeated):
    def repeats(self) -> int:
        return int(self.array[0])


class ByGlobal(Repeated):
    def repeats(self) -> int:
        return FACTOR * OPTIONS["repeats"][0]


class BySlot(Repeated):
    def repeats(self) -> int:
        return self.slotted.repeats


class Slotted:
    __slots__ = ("repeats",)


class ByValue(Repeated):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("number", torch.ones(1))

    def repeats(self) -> int:
        return int(self.number.item())


def slotted(repeats: int) -> Slotted:
    made = Slotted()
    made.repeats = repeats
    return made


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (ByDict(options={"repeats": 1}), lambda m: m.options.update(repeats=5)),
        (ByNestedDict(options={"a": {"repeats": [1]}}), lambda m: m.options["a"]["repeats"].__setitem__(0, 5)),
        (ByObject(config=Config(Config(1))), lambda m: setattr(m.config.repeats, "repeats", 5)),  # type: ignore[arg-type]
        (ByArray(array=np.array([1, 2])), lambda m: m.array.__setitem__(0, 5)),
        (BySlot(slotted=slotted(1)), lambda m: setattr(m.slotted, "repeats", 5)),
        (ByValue(), lambda m: m.number.data.fill_(5)),
        (Repeated(), lambda m: setattr(m, "repeats", lambda: 5)),
    ],
    ids=["dict", "nested", "object", "array", "slot", "value", "method"],
)
def test_value_inside_a_model_is_seen(
    traced: list[str], module: nn.Module, change: Callable[[nn.Module], object]
) -> None:
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    change(module)
    assert profile(workload(module, loss=summed)).forward_flops == 5 * ONE


def test_class_attribute_and_method_are_seen(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = Repeated()
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    profile(workload(module, loss=summed))
    assert len(traced) == 1
    monkeypatch.setattr(Repeated, "count", 4)
    assert profile(workload(module, loss=summed)).forward_flops == 4 * ONE
    monkeypatch.setattr(Repeated, "repeats", lambda self: 2)
    assert profile(workload(module, loss=summed)).forward_flops == 2 * ONE


def test_global_of_forward_is_seen(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ByGlobal()
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    profile(workload(module, loss=summed))
    assert len(traced) == 1
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert profile(workload(module, loss=summed)).forward_flops == 3 * ONE
    monkeypatch.setitem(OPTIONS, "repeats", [2])
    assert profile(workload(module, loss=summed)).forward_flops == 6 * ONE


def test_patched_layer_of_torch_is_seen(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    forward = nn.Linear.forward
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(self, forward(self, x)))
    assert profile(workload(module, loss=summed)).forward_flops == 2 * ONE


class ByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.l(x))


def test_patched_function_of_torch_is_seen(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module = ByFunction()
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", lambda x: x @ torch.ones(4, 4))
        assert profile(workload(module, loss=summed)).forward_flops == 2 * ONE
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    assert len(traced) == 2


def twice(layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output @ torch.ones(4, 4)


def test_replaced_hook_is_seen(traced: list[str]) -> None:
    module = nn.Linear(4, 4)
    handle = module.register_forward_hook(lambda *_: None)
    assert profile(workload(module, loss=summed)).forward_flops == ONE
    handle.remove()
    module.register_forward_hook(twice)
    assert profile(workload(module, loss=summed)).forward_flops == 2 * ONE


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_each_kind_of_hook_is_seen(traced: list[str]) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    for count, register in enumerate(
        (
            lambda: module.register_full_backward_pre_hook(lambda *_: None),
            lambda: module.register_full_backward_hook(lambda *_: None),
            lambda: module.register_forward_pre_hook(lambda *_: None),
            lambda: nn.modules.module.register_module_forward_hook(lambda *_: None),
        )
    ):
        profile(workload(module, loss=summed))
        assert len(traced) == count + 1
        handle = register()
    profile(workload(module, loss=summed))
    handle.remove()
    assert len(traced) == 5


def rows(count: Any) -> Callable[[int], torch.Tensor]:
    """Example inputs with as many rows as what the closure holds says."""
    return lambda batch_size: torch.randn(find(count), 4)


def find(held: Any) -> int:
    while not isinstance(held, int):
        held = held.repeats if isinstance(held, Config) else held["n"] if isinstance(held, dict) else held[0]
    return held


class Maker:
    def __init__(self) -> None:
        self.options = {"n": 3}

    def __call__(self, batch_size: int) -> torch.Tensor:
        return torch.randn(self.options["n"], 4)


def from_list(batch_size: int) -> torch.Tensor:
    return torch.randn(OPTIONS["repeats"][0], 4)


@pytest.mark.parametrize(
    ("held", "change"),
    [
        ({"n": 3}, lambda held: held.update(n=6)),
        ([[3]], lambda held: held[0].__setitem__(0, 6)),
        (Config([3]), lambda held: held.repeats.__setitem__(0, 6)),  # type: ignore[arg-type]
    ],
)
def test_what_a_closure_holds_is_seen(traced: list[str], held: Any, change: Callable[[Any], object]) -> None:
    module, inputs = nn.Linear(4, 4), rows(held)
    options: dict[str, Any] = {"example_inputs": inputs, "loss": summed, "batch_size": 4}
    assert profile(workload(module, **options)).forward_flops == ONE
    assert profile(workload(module, **options)).forward_flops == ONE
    assert len(traced) == 1
    change(held)
    assert profile(workload(module, **options)).forward_flops == 2 * ONE


def test_callable_object_default_and_global_list_are_seen(traced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module, maker = nn.Linear(4, 4), Maker()

    def by_default(batch_size: int, n: Any = (3,), *, m: Any = None) -> torch.Tensor:
        return torch.randn((m or n)[0], 4)

    def flops(inputs: Any) -> int:
        return profile(workload(module, example_inputs=inputs, loss=summed, batch_size=4)).forward_flops

    assert flops(maker) == ONE
    maker.options["n"] = 6
    assert flops(maker) == 2 * ONE
    assert flops(by_default) == ONE
    by_default.__defaults__ = ([6],)
    assert flops(by_default) == 2 * ONE
    by_default.__defaults__[0][0] = 9
    assert flops(by_default) == 3 * ONE
    by_default.__kwdefaults__["m"] = [3]
    assert flops(by_default) == ONE
    monkeypatch.setitem(OPTIONS, "repeats", [3])
    assert flops(from_list) == ONE
    OPTIONS["repeats"][0] = 6
    assert flops(from_list) == 2 * ONE


def test_module_in_the_closure_of_a_loss_is_seen(traced: list[str]) -> None:
    module, judge = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def loss(output: torch.Tensor, _targets: Any) -> torch.Tensor:
        return judge(output).sum()

    assert profile(workload(module, loss=loss)).forward_flops == 2 * ONE
    judge.weight = nn.Parameter(torch.randn(8, 4))
    assert profile(workload(module, loss=loss)).forward_flops == 3 * ONE


def test_value_that_a_function_reads_is_seen(traced: list[str]) -> None:
    module, chosen = nn.Linear(4, 4), torch.tensor([True] * 3 + [False] * 3)
    options: dict[str, Any] = {"example_inputs": lambda _: torch.ones(6, 4)[chosen], "loss": summed, "batch_size": 4}
    assert profile(workload(module, **options)).forward_flops == ONE
    chosen.data.fill_(True)
    assert profile(workload(module, **options)).forward_flops == 2 * ONE


def test_what_cannot_be_looked_into_is_not_cached() -> None:
    config = Config(1)
    for hidden in (threading.Lock(), iter([1]), random.Random(1), torch.Generator(), weakref.proxy(config)):
        assert cache_key(workload(Repeated(hidden=hidden))) is None
    for plain in ({1: (2, [3])}, {"a", "b"}, Config(1), functools.partial(summed), np.float32(1), [torch.zeros(2)]):
        assert cache_key(workload(Repeated(plain=plain))) is not None


class Skipping(nn.Module):
    """Skips its second layer half of the time, and counts how often it was called."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.draw = draw
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        assert self.calls == 1  # every draw gets a model that nobody has called
        x = self.first(x)
        return self.second(x) if self.draw() > 0.5 else x


def python_draw() -> float:
    return random.random()


def numpy_draw() -> float:
    return float(np.random.random())


# Of the first four draws some are below a half and some above.
@pytest.mark.parametrize(("draw", "seed"), [(python_draw, random.seed), (numpy_draw, np.random.seed)])
def test_a_branch_on_a_random_number_is_data_dependent_and_not_cached(
    traced: list[str], draw: Callable[[], float], seed: Callable[[int], None]
) -> None:
    module = Skipping(draw)
    seed(1)
    first_draw = draw()
    for times in (1, 2):
        seed(1)
        p = profile(workload(module, loss=summed))
        assert p.data_dependent
        assert p.forward_flops_range == (ONE, 2 * ONE)
        assert p.forward_flops == (2 * ONE if first_draw > 0.5 else ONE)
        assert [note for note in p.notes if "the range is that of 4" in note]
        assert len(traced) == times
        assert draw() == first_draw  # the generator is where it was
    assert module.calls == 0


def test_drawing_from_the_generator_of_torch_depends_on_no_data(traced: list[str]) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    for _ in range(2):
        assert not profile(workload(module, loss=summed)).data_dependent
    assert len(traced) == 1


def test_attributes_that_contain_themselves(traced: list[str]) -> None:
    module = Repeated(own={}, others=[])
    module.own["self"] = module.own
    module.others += [module, module.others]
    module.parent = weakref.ref(module)
    key = cache_key(workload(module))
    assert key is not None
    assert key == cache_key(workload(module))
    module.count = 2
    assert key != cache_key(workload(module))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_compiled_model_is_profiled(traced: list[str]) -> None:
    inner = nn.Sequential(nn.Linear(4, 4))
    compiled = torch.compile(inner)
    assert profile(workload(compiled, loss=summed)).forward_flops == ONE
    profile(workload(compiled, loss=summed))
    assert len(traced) == 1
    nested = nn.Sequential(compiled, nn.Linear(4, 4))
    assert profile(workload(nested, loss=summed)).forward_flops == 2 * ONE
    inner.append(nn.Linear(4, 4))
    assert profile(workload(nested, loss=summed)).forward_flops == 3 * ONE


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_scripted_submodule_is_profiled(traced: list[str]) -> None:
    module = nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 4))
    assert profile(workload(module, loss=summed)).forward_flops == 2 * ONE


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_csr_input_is_profiled_or_refused() -> None:
    x = torch.eye(3, 4).to_sparse_csr()
    assert cache_key(workload(nn.Linear(4, 4), example_inputs=x)) is None
    with contextlib.suppress(ModelError):  # no raw error of torch; a count if it is given
        assert profile(workload(nn.Linear(4, 4), example_inputs=x, loss=summed)).forward_flops > 0


class Attributed(nn.Module):
    """Layers with every kind of attribute that a remembered tree tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.flag: Any = 1
        self.sizes = [1, 2]
        self.pair = (1, 2)
        self.config = Config(1)
        self.layers = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layers["b"](self.layers["a"](x)))


class OtherLinear(nn.Linear):
    pass


def reorder(module: Attributed) -> None:
    module.layers._modules["a"] = module.layers._modules.pop("a")


def rename_attribute(module: Attributed) -> None:
    del module.flag
    del module.sizes
    module.sizes = [1, 2]
    module.falg = 1  # type: ignore[assignment]


def shrink(module: Attributed) -> None:
    module.layers["a"].weight.data = module.layers["a"].weight.data[:2]


def transpose(module: Attributed) -> None:
    module.layers["a"].weight.data = module.layers["a"].weight.data.t()


CHANGES: dict[str, Callable[[Attributed], object]] = {
    "equal value of another type": lambda m: setattr(m, "flag", True),
    "equal value of another type in a tuple": lambda m: setattr(m, "pair", (True, 2)),
    "equal value of another type in a list": lambda m: m.sizes.__setitem__(0, True),
    "item of a list": lambda m: m.sizes.__setitem__(0, 3),
    "longer list": lambda m: m.sizes.append(3),
    "list instead of tuple": lambda m: setattr(m, "pair", [1, 2]),
    "tuple instead of list": lambda m: setattr(m, "sizes", (1, 2)),
    "module in a list": lambda m: m.sizes.append(m),
    "object's attribute": lambda m: setattr(m.config, "repeats", 2),
    "object instead of a number": lambda m: setattr(m, "flag", Config(1)),
    "new attribute": lambda m: setattr(m.norm, "extra", None),
    "renamed attribute": rename_attribute,
    "swapped children": lambda m: m.layers.update({"a": m.layers["b"], "b": m.layers["a"]}),
    "reordered children": reorder,
    "tied children": lambda m: m.layers.update({"a": m.layers["b"]}),
    "replaced child": lambda m: m.layers.update({"a": nn.Linear(4, 4)}),
    "removed child": lambda m: m.layers.pop("a"),
    "child set to None": lambda m: m.layers._modules.__setitem__("a", None),
    "class": lambda m: setattr(m.layers["a"], "__class__", OtherLinear),
    "forward hook": lambda m: m.layers["a"].register_forward_hook(lambda *_: None),
    "hooks set directly": lambda m: setattr(m.norm, "_forward_pre_hooks", {1: lambda *_: None}),
    "mode of a child": lambda m: m.norm.eval(),
    "replaced parameter": lambda m: setattr(m.layers["a"], "weight", nn.Parameter(torch.zeros(4, 4))),
    "removed parameter": lambda m: m.layers["a"].register_parameter("bias", None),
    "tied parameter": lambda m: setattr(m.layers["a"], "weight", m.layers["b"].weight),
    "frozen parameter": lambda m: m.layers["a"].weight.requires_grad_(False),
    "shape of a parameter": shrink,
    "strides of a parameter": transpose,
    "dtype of a parameter": lambda m: setattr(m.layers["a"].weight, "data", torch.zeros(4, 4, dtype=torch.float64)),
    "hook of a parameter": lambda m: m.layers["a"].weight.register_hook(lambda _: None),
    "late hook of a parameter": lambda m: m.layers["a"].weight.register_post_accumulate_grad_hook(lambda _: None),
    "attribute of a parameter": lambda m: setattr(m.layers["a"].weight, "scale", 2),
    "replaced buffer": lambda m: setattr(m.norm, "running_mean", torch.zeros(5)),
    "new buffer": lambda m: m.norm.register_buffer("extra", torch.zeros(1)),
    "wrapped child": lambda m: m.layers.update({"a": nn.DataParallel(m.layers["a"])}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_of_a_remembered_tree_is_seen(name: str) -> None:
    module = Attributed()
    w = workload(module)
    before = cache_key(w)
    assert before is not None
    assert cache_key(w) == before  # remembered
    CHANGES[name](module)
    after = cache_key(w)
    assert after is not None
    assert after != before
    assert cache_key(w) == after
    assert cache_key(workload(module, example_inputs=w.example_inputs)) == after


def test_change_that_is_taken_back_is_the_same_workload() -> None:
    module = Attributed()
    w = workload(module)
    before = cache_key(w)
    handle = module.norm.register_forward_hook(lambda *_: None)
    module.sizes.append(3)
    assert cache_key(w) != before
    handle.remove()
    module.sizes.pop()
    assert cache_key(w) == before


def test_module_in_a_wrapper_and_in_the_loss_is_looked_into(traced: list[str]) -> None:
    inner = nn.Sequential(nn.Linear(4, 4))
    module = nn.DataParallel(inner)

    def loss(output: torch.Tensor, _targets: Any) -> torch.Tensor:
        return inner(output).sum()

    w = workload(module, loss=loss)
    assert profile(w).forward_flops == 2 * ONE
    profile(w)
    assert len(traced) == 1
    inner.append(nn.Linear(4, 4))
    assert profile(w).forward_flops == 4 * ONE
    module.module = nn.Linear(4, 4)
    assert profile(w).forward_flops == 3 * ONE


def remembered() -> list[weakref.ref[Any]]:
    """References to what leads back to its workload, and is remembered."""

    class Local(Attributed):
        pass

    module = Local()
    w = workload(module)
    module.config.repeats = w  # type: ignore[assignment]
    module.sizes.append(w)  # type: ignore[arg-type]
    profile(w)
    profile(w)
    return [weakref.ref(held) for held in (module, w, Local, module.layers["a"].weight)]


def test_remembered_tree_keeps_neither_model_nor_class_alive(traced: list[str]) -> None:
    references = remembered()
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_unchanged_tree_is_not_walked_again() -> None:
    module = Attributed()
    stamp = read_tree(module).stamp
    assert read_tree(module).stamp is stamp
    with torch.no_grad():
        module.norm.running_mean.add_(1)
    assert read_tree(module).stamp is stamp


def test_module_that_was_never_initialised_is_refused() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            pass

    assert cache_key(workload(Empty())) is None
    for given in (Empty(), Empty, nn.Sequential(nn.ReLU(), Empty())):
        with pytest.raises(ModelError, match=r"Empty was never initialised: its __init__ must call super"):
            profile(tp.Workload(given, torch.randn(3, 4)))
