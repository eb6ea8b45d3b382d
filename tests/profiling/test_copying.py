"""Whatever a model, a loss or an optimizer factory reaches, a profile works on copies of it."""

from __future__ import annotations

import copy
import enum
import io
import queue
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, UnsupportedFakeTensorException

import trainpilot as tp
from trainpilot.errors import ModelError
from trainpilot.profiling import count_operations
from trainpilot.profiling.copies import ModelCopier, fake_converter, to_real

from .test_flops import of, summed
from .test_side_effects import state_of


class Reading(nn.Module):
    """Reads a value, so that it runs on real tensors; has statistics, which a shared copy would move."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.l(x)) if x.sum().item() > -1e9 else x


class RaisingDeepcopy(Reading):
    def __deepcopy__(self, memo):
        raise RuntimeError("no copies")


class LockedState(Reading):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __getstate__(self):
        return {**self.__dict__, "extra": threading.Lock()}


class RaisingReduce(Reading):
    def __reduce_ex__(self, protocol):
        raise TypeError("not to be pickled")


class SharingDeepcopy(Reading):
    def __deepcopy__(self, memo):
        return self


def step_of_one(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1.0)


@pytest.mark.parametrize("kind", [RaisingDeepcopy, LockedState, RaisingReduce, SharingDeepcopy])
def test_a_module_that_cannot_be_deep_copied_is_not_changed(kind: type[nn.Module]) -> None:
    model = kind()
    before = state_of(model)
    p = of(model, torch.randn(4, 8), optimizer=step_of_one)
    assert p.data_dependent
    assert (p.params, p.memory.gradients_bytes) == (44, 176)
    assert state_of(model) == before


class Holder:
    """An object that a copy protocol cannot copy, with everything that a step could change."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rlock = threading.RLock()
        self.t = torch.zeros(4)
        self.calls = 0
        self.seen: list[Any] = []
        self.layer = nn.Linear(8, 4)
        self.inside = {"holder": self}


class Holds(nn.Module):
    def __init__(self, read: bool) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.h = Holder()
        self.read = read

    def forward(self, x):
        with self.h.lock, self.h.rlock, self.h.inside["holder"].rlock:
            self.h.t += 1
            self.h.inside["holder"].calls += 1
            self.h.seen.append(x)
        y = self.l(x) + self.h.layer(x)
        return y if not self.read or x.sum().item() > -1e9 else x


@pytest.mark.parametrize("read", [False, True])
def test_an_object_that_holds_a_lock_is_copied(read: bool) -> None:
    model = Holds(read)
    with model.h.lock:  # of the user; the copy has its own
        p = of(model, torch.randn(4, 8), optimizer=step_of_one)
    assert p.forward_flops == 2 * 256
    assert not model.h.t.any()
    assert (model.h.calls, model.h.seen, model.h.layer.weight.grad, model.l.weight.grad) == (0, [], None, None)


class ByParent(nn.Module):
    def __init__(self, parent: nn.Module, way: Any) -> None:
        super().__init__()
        self.way = way(parent)

    def forward(self, x):
        parent = self.way() if isinstance(self.way, weakref.ref) else self.way
        return x @ parent.e.weight


class Parent(nn.Module):
    def __init__(self, way: Any) -> None:
        super().__init__()
        self.e = nn.Linear(8, 4)
        self.l = nn.Linear(8, 4)
        self.child = ByParent(self, way)

    def forward(self, x):
        return self.child(self.l(x)).sum() + self.e(x).sum()


@pytest.mark.parametrize("way", [weakref.ref, weakref.proxy, lambda parent: (parent,).__iter__().__next__()])
def test_a_weak_reference_to_the_parent_leads_to_the_copy(way: Any) -> None:
    model = Parent(way)
    p = of(model, torch.randn(4, 8), loss=None)
    # Two linear layers of 36 parameters, all with gradients.
    assert p.memory.gradients_bytes == 2 * 36 * 4
    assert p.forward_flops == 3 * 256 + 32 * 0
    assert all(parameter.grad is None for parameter in model.parameters())


GLOBAL_LAYER = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
GLOBAL_WEIGHT = nn.Parameter(torch.ones(4))
GLOBAL_LOG: list[Any] = []
GLOBAL_CALLS = 0


def by_global(x: torch.Tensor) -> torch.Tensor:
    global GLOBAL_CALLS
    GLOBAL_CALLS += 1
    GLOBAL_LOG.append(x)
    return GLOBAL_LAYER(x) * GLOBAL_WEIGHT


class UsesGlobals(nn.Module):
    def __init__(self, read: bool) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.read = read

    def forward(self, x):
        y = self.layer(self.l(x))
        return y if not self.read or x.sum().item() > -1e9 else x

    def layer(self, x):
        return by_global(x) + GLOBAL_LAYER(x)


@pytest.mark.parametrize("read", [False, True])
def test_globals_that_a_forward_method_uses_are_not_changed(read: bool) -> None:
    before = state_of(GLOBAL_LAYER)
    p = of(UsesGlobals(read), torch.randn(4, 8))
    assert p.forward_flops == 4 * (2 * 64 + 2 * 2 * 32)
    assert state_of(GLOBAL_LAYER) == before
    assert (GLOBAL_WEIGHT.grad, GLOBAL_LOG, GLOBAL_CALLS) == (None, [], 0)


@pytest.mark.parametrize("hidden", [{"f": by_global}, [by_global], by_global])
def test_globals_behind_a_function_that_a_loss_holds_are_not_changed(hidden: Any) -> None:
    def loss(outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        function = hidden if callable(hidden) else hidden["f"] if isinstance(hidden, dict) else hidden[0]
        return function(outputs).sum()

    before = state_of(GLOBAL_LAYER)
    of(nn.Linear(8, 8), torch.randn(4, 8), loss=loss)
    assert state_of(GLOBAL_LAYER) == before
    assert (GLOBAL_WEIGHT.grad, GLOBAL_LOG, GLOBAL_CALLS) == (None, [], 0)


class Shelf:
    """Leads to a parameter by an attribute of a class, which is not copied."""

    weight = nn.Parameter(torch.ones(4))


class UsesShelf(nn.Module):
    def __init__(self, read: bool) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.read = read

    def forward(self, x):
        return self.l(x) * Shelf.weight if not self.read or x.sum().item() > -1e9 else x


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("grad", [None, torch.full((4,), 3.0)])
def test_the_gradient_of_a_parameter_reached_another_way_is_put_back(read: bool, grad: Any) -> None:
    Shelf.weight.grad = grad
    try:
        assert of(UsesShelf(read), torch.randn(4, 8)).forward_flops == 256
        assert Shelf.weight.grad is grad
        assert grad is None or torch.equal(grad, torch.full((4,), 3.0))
    finally:
        Shelf.weight.grad = None


@pytest.mark.parametrize("kind", [Reading, lambda: nn.Linear(8, 4)])
def test_a_factory_that_holds_the_optimizer_of_the_model_steps_a_copy(kind: Any) -> None:
    model = kind()
    optimizer = torch.optim.Adam(model.parameters(), 1.0)
    before = state_of(model)
    p = of(model, torch.randn(4, 8), optimizer=lambda parameters: optimizer)
    assert state_of(model) == before
    assert not optimizer.state
    assert p.memory.optimizer_bytes == 2 * p.param_bytes


class Kept:
    optimizer: Any = None


@pytest.mark.parametrize("kind", [Reading, lambda: nn.Linear(8, 4)])
def test_an_optimizer_over_other_parameters_is_refused(kind: Any) -> None:
    model = kind()
    Kept.optimizer = torch.optim.SGD(model.parameters(), 1.0)
    before = state_of(model)
    with pytest.raises(ModelError, match=r"optimizer.*parameters.*that it is given"):
        of(model, torch.randn(4, 8), optimizer=lambda parameters: Kept.optimizer)
    assert state_of(model) == before


def test_an_optimizer_over_the_parameters_of_the_loss_too_is_accepted() -> None:
    class Margin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(4))

        def forward(self, outputs, targets):
            return (outputs - self.centers).pow(2).mean()

    loss = Margin()
    before = state_of(loss)
    p = of(
        nn.Linear(8, 4),
        torch.randn(4, 8),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD([*parameters, *loss.parameters()], 1.0),
    )
    assert p.features["calls.optimizer"] > 0
    assert state_of(loss) == before


class Slotted(nn.Module):
    __slots__ = ("__scale", "table")

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.__scale = torch.ones(4)
        self.table = [1.0]

    def forward(self, x):
        self.__scale += 1
        self.table.append(2.0)
        return self.l(x) * self.__scale


def test_slots_of_a_module_are_copied() -> None:
    model = Slotted()
    assert of(model, torch.randn(4, 8)).forward_flops == 256
    assert model.table == [1.0]
    assert torch.equal(model._Slotted__scale, torch.ones(4))


def test_a_user_class_called_like_a_wrapper_keeps_its_layers() -> None:
    class DataParallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(8, 8)
            self._orig_mod = nn.Linear(8, 8)

        def forward(self, x):
            return self._orig_mod(self.module(x))

    assert of(DataParallel(), torch.randn(4, 8)).forward_flops == 1_024
    assert of(nn.Sequential(DataParallel()), torch.randn(4, 8)).forward_flops == 1_024


def test_a_child_in_a_wrapper_is_reached_through_it() -> None:
    class Reaching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.DataParallel(nn.Linear(8, 8))

        def forward(self, x):
            return self.l.module(self.l(x))

    p = of(Reaching(), torch.randn(4, 8))
    assert (p.params, p.layers, p.depth, p.forward_flops) == (72, 1, 2, 1_024)


def test_hooks_of_parameters_run_on_the_copy() -> None:
    model = nn.Linear(8, 4)
    seen: list[Any] = []

    def scale(grad: torch.Tensor) -> torch.Tensor:
        seen.append(grad)
        return grad.tanh()

    model.weight.register_hook(scale)
    p = of(model, torch.randn(4, 8))
    assert sum(g.calls for g in p.op_groups if g.op == "aten.tanh" and g.phase == "backward") == 1
    assert seen == []
    assert model.weight.grad is None


def test_an_optimizer_inside_the_backward_pass_steps_the_copy() -> None:
    model = nn.Linear(8, 4)
    optimizers = {parameter: torch.optim.SGD([parameter], 1.0) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    before = state_of(model)
    p = of(model, torch.randn(4, 8))
    assert p.features["calls.optimizer"] == 0
    assert sum(g.calls for g in p.op_groups if g.phase == "backward" and "add_" in g.op) == 2
    assert state_of(model) == before


def test_attributes_of_parameters_are_copied() -> None:
    model = nn.Linear(8, 4)
    model.weight.seen = []
    model.forward = lambda x: (model.weight.seen.append(x), x @ model.weight.T)[1]  # type: ignore[method-assign]
    of(model, torch.randn(4, 8))
    assert model.weight.seen == []


class Draws(nn.Module):
    def __init__(self, source: Any) -> None:
        super().__init__()
        self.l = nn.Linear(8, 4)
        self.source = source

    def forward(self, x):
        return self.l(x) * float(next(self.source))


def test_a_running_generator_is_not_advanced() -> None:
    generator = (n for n in range(1, 4))
    with pytest.raises(ModelError, match="advances a generator"):
        of(Draws(generator), torch.randn(4, 8))
    assert next(generator) == 1


def test_an_iterator_is_copied_at_its_place() -> None:
    iterator = iter([1.0, 2.0, 3.0])
    next(iterator)
    assert of(Draws(iterator), torch.randn(4, 8)).forward_flops == 256
    assert next(iterator) == 2.0


@pytest.mark.parametrize("text", ["1\n2\n3\n", "1\n2\u00e4\n3\n"])
def test_an_open_file_is_neither_moved_nor_written(tmp_path: Path, text: str) -> None:
    class Logs(nn.Module):
        def __init__(self, source: Any, log: Any) -> None:
            super().__init__()
            self.l = nn.Linear(8, 4)
            self.source = source
            self.log = log

        def forward(self, x):
            line = self.source.readline()
            assert line.startswith("2"), line
            self.log.write(line)
            return self.l(x)

    path, log = tmp_path / "in.txt", tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    with path.open(encoding="utf-8") as source, log.open("w") as target:
        source.readline()
        assert of(Logs(source, target), torch.randn(4, 8)).forward_flops == 256
        assert source.readline() == text.splitlines(keepends=True)[1]
    assert log.read_text() == ""


def test_a_jagged_tensor_has_a_real_copy_but_no_fake_one() -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 8), torch.randn(3, 8)], layout=torch.jagged)
    other = copied(nested)
    assert other is not nested
    assert torch.equal(other.values(), nested.values())
    with pytest.raises(UnsupportedFakeTensorException, match="jagged"):
        ModelCopier(fake_converter(FakeTensorMode())).value(nested)


class Colour(enum.Enum):
    RED = 1


def copied(value: Any) -> Any:
    return ModelCopier(to_real).value(value)


def test_what_is_shared_stays_shared_and_cycles_stay_cycles() -> None:
    holder = Holder()
    cyclic: list[Any] = [holder, holder.t, Colour.RED, torch.relu, nn.Linear, threading]
    cyclic.append((cyclic,))
    other = copied(cyclic)
    assert other is not cyclic
    assert other[0] is not holder
    assert other[0].inside["holder"] is other[0]
    assert other[0].t is other[1]
    assert other[1] is not holder.t
    assert all(a is b for a, b in zip(other[2:6], cyclic[2:6], strict=True))
    assert other[6][0] is other


def test_kinds_of_objects_that_copy_themselves() -> None:
    weak: Any = weakref.WeakValueDictionary({"l": nn.Linear(2, 2)})
    generator = torch.Generator().manual_seed(3)
    values = [{1, 2}, frozenset((3,)), range(4), io.StringIO("a"), generator, slice(1, 2), queue.Queue()]
    others = copied(values)
    assert others[:3] == values[:3]
    assert others[3].getvalue() == "a"
    assert torch.rand(2, generator=others[4]).tolist() == torch.rand(2, generator=generator).tolist()
    assert all(a is not b for a, b in zip(others[3:5], values[3:5], strict=True))
    assert len(weak) == len(copied(weak)) == 0  # its only layer is gone


def test_a_bound_method_of_a_list_fills_the_copy() -> None:
    class Appends(nn.Module):
        def __init__(self, append: Any) -> None:
            super().__init__()
            self.l = nn.Linear(8, 4)
            self.append = append

        def forward(self, x):
            self.append(x)
            return self.l(x)

    outside: list[Any] = []
    of(Appends(outside.append), torch.randn(4, 8))
    assert outside == []


def test_copies_agree_with_the_original() -> None:
    model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, dropout=0.0, batch_first=True)
    lstm = nn.LSTM(8, 4)
    x = torch.randn(2, 3, 8)
    assert torch.equal(copied(model)(x), model(x))
    assert torch.equal(copied(lstm)(x)[0], lstm(x)[0])
    assert copied(copy.deepcopy(lstm))._flat_weights[0].shape == (16, 8)


def test_counting_a_function_leaves_its_globals() -> None:
    before = state_of(GLOBAL_LAYER)
    counts = count_operations(by_global, (torch.randn(4, 8),), backward=True)
    assert counts.forward_flops == 256
    assert state_of(GLOBAL_LAYER) == before
    assert (GLOBAL_WEIGHT.grad, GLOBAL_LOG, GLOBAL_CALLS) == (None, [], 0)


def test_a_module_level_loss_is_used_as_it_is() -> None:
    assert copied(summed) is summed
    assert copied(torch.nn.functional.relu) is torch.nn.functional.relu
    assert tp.profile(tp.Workload(nn.Linear(8, 4), torch.randn(4, 8), loss=summed)).forward_flops == 256
