"""A profile leaves everything as it was, also when something raises."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.errors import ModelError
from trainpilot.profiling import profile
from trainpilot.profiling.guard import tracing_state

from .test_flops import Dynamic, of, summed


class Mixed(nn.Module):
    """Mixed modes, BatchNorm statistics, dropout, and an in-place operation on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.d = nn.Dropout(0.5)
        self.bn.eval()

    def forward(self, x):
        return self.d(self.bn(self.a(x.mul_(2))))


def state_of(model: nn.Module) -> list[Any]:
    """Everything about a module that a profile could change."""
    return [
        [
            (
                module.training,
                sorted(vars(module)),
                {name: value for name, value in vars(module).items() if isinstance(value, int | float | str | list)},
                [len(value) for name, value in vars(module).items() if name.endswith("hooks")],
                type(module),
            )
            for module in model.modules()
        ],
        [
            (name, tensor.tolist(), tensor.requires_grad, tensor.grad, tensor._version, tensor.data_ptr())
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        ],
    ]


def test_a08_nothing_is_changed() -> None:
    model, x = Mixed(), torch.ones(8, 4)
    before = state_of(model)
    numpy_state, python_state = np.random.get_state()[1].tolist(), random.getstate()
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    of(model, x)
    assert torch.rand(1).item() == 0.49625658988952637
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert model.bn.num_batches_tracked == 0
    assert not model.bn.running_mean.any()
    assert torch.equal(x, torch.ones(8, 4))
    assert state_of(model) == before
    assert np.random.get_state()[1].tolist() == numpy_state
    assert random.getstate() == python_state
    assert torch.get_num_threads() == threads


def test_a08_batch_norm_with_one_sample_is_retried_with_two() -> None:
    model = Mixed()
    model.bn.train()
    p = of(model, torch.ones(1, 4))
    assert (p.batch_size, p.forward_flops) == (2, 2 * 2 * 4 * 4)
    assert p.features["batch_size"] == 2
    assert any("BatchNorm needs batch >= 2 in train mode" in note for note in p.notes)
    by_function = profile(tp.Workload(model, lambda n: torch.ones(n, 4), loss=summed, batch_size=1))
    assert by_function.batch_size == 2


def test_a08_batch_norm_that_cannot_be_retried_says_why() -> None:
    class OneSample(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.bn(x[:1])

    with pytest.raises(ModelError, match="BatchNorm needs batch >= 2 in train mode"):
        of(OneSample(), torch.ones(1, 4))


class Drawing(nn.Module):
    """Draws from every generator and reads a value, so that it runs on real tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.bn = nn.BatchNorm1d(4)
        self.calls = 0
        self.seen: list[float] = []

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(x.sum()))
        x.add_(random.random() + np.random.rand() + torch.rand(1))
        return self.bn(self.l(x))


def test_nothing_is_changed_on_real_tensors_either() -> None:
    model, x = Drawing(), torch.ones(8, 4)
    before = state_of(model)
    numpy_state, python_state = np.random.get_state()[1].tolist(), random.getstate()
    torch.manual_seed(0)
    p = of(model, x)
    assert p.data_dependent
    assert torch.rand(1).item() == 0.49625658988952637
    assert state_of(model) == before
    assert (model.calls, model.seen) == (0, [])
    assert torch.equal(x, torch.ones(8, 4))
    assert np.random.get_state()[1].tolist() == numpy_state
    assert random.getstate() == python_state


class Raising(Mixed):
    def forward(self, x):
        super().forward(x)
        random.random()
        raise RuntimeError("broken on\npurpose")


def test_nothing_is_changed_when_the_model_raises() -> None:
    checked = torch.distributions.Distribution._validate_args  # the compiler, once imported, sets it
    model, x = Raising(), torch.ones(8, 4)
    before, python_state = state_of(model), random.getstate()
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=r"^Raising: forward raised RuntimeError: broken on purpose$"):
        of(model, x)
    assert torch.rand(1).item() == 0.49625658988952637
    assert state_of(model) == before
    assert random.getstate() == python_state
    assert torch.equal(x, torch.ones(8, 4))
    assert torch.distributions.Distribution._validate_args is checked
    assert not logging.getLogger("torch._subclasses.fake_tensor").disabled
    assert torch.is_grad_enabled()


def test_a_builder_and_its_inputs_do_not_move_the_random_generator() -> None:
    torch.manual_seed(0)
    profile(tp.Workload(lambda: nn.Linear(4, 4), lambda n: torch.randn(n, 4), batch_size=3))
    assert torch.rand(1).item() == 0.49625658988952637


SEEN_BY_HOOKS: list[Any] = []


def test_hooks_of_the_user_do_not_reach_outside() -> None:
    kept: list[Any] = []
    counter = {"calls": 0}

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        kept.append(output)
        counter["calls"] += 1
        SEEN_BY_HOOKS.append(output)
        return output * 2

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    handle = model[0].register_forward_hook(hook)
    p = of(model, torch.randn(2, 4))
    assert (kept, counter, SEEN_BY_HOOKS) == ([], {"calls": 0}, [])
    # It did run, on a copy: its product is part of the step.
    assert sum(g.calls for g in p.op_groups if g.op == "aten.mul" and g.phase == "forward") == 1
    handle.remove()
    assert len(model[0]._forward_hooks) == 0


def test_a_patched_forward_runs_on_the_copy() -> None:
    model = nn.Linear(4, 4)
    original = model.forward
    model.forward = lambda x: original(x) * 2  # type: ignore[method-assign]
    p = of(model, torch.randn(2, 4))
    assert p.forward_flops == 64
    assert model.weight.grad is None


def test_gradients_and_tensors_of_a_loss_stay_untouched() -> None:
    class Margin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.centers = nn.Parameter(torch.randn(3, 4))

        def forward(self, outputs, targets):
            return (outputs - self.centers.mean(0)).pow(2).mean()

    loss, model = Margin(), nn.Linear(4, 4)
    model.weight.grad = torch.full((4, 4), 7.0)
    of(model, torch.randn(2, 4), loss=loss)
    assert loss.centers.grad is None
    assert torch.equal(model.weight.grad, torch.full((4, 4), 7.0))
    scale = torch.ones(1, requires_grad=True)
    of(model, torch.randn(2, 4), loss=lambda outputs, targets: (outputs * scale).sum())
    assert scale.grad is None


def test_what_cannot_be_copied_is_shared() -> None:
    class Locked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)
            self.lock = threading.Lock()
            self.generator = (n for n in range(3))

        def forward(self, x):
            with self.lock:
                return self.l(x)

    assert of(Locked(), torch.randn(2, 4)).forward_flops == 64


def test_the_mode_of_the_caller_does_not_count() -> None:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.no_grad():
        p = of(model, x)
    with torch.inference_mode():
        q = of(nn.Linear(4, 4), x)
    assert p.backward_flops == q.backward_flops == 64


def test_random_state_is_kept_when_the_guarded_block_raises() -> None:
    state = torch.get_rng_state()

    def draw_and_fail() -> None:
        with tracing_state():
            torch.rand(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), state)


def test_inputs_of_a_data_dependent_model_stay_untouched() -> None:
    model, x = Dynamic(), torch.full((4, 8), 0.5)
    before = state_of(model)
    of(model, x)
    assert torch.equal(x, torch.full((4, 8), 0.5))
    assert state_of(model) == before


def test_containers_and_objects_among_the_inputs_are_copied() -> None:
    class Cache:
        def __init__(self) -> None:
            self.kept = torch.zeros(4)

    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x, history, cache):
            history.append(x)
            cache.kept += 1
            if self.l.weight.sum() > 1e9:  # reads a value: real tensors
                return x
            return self.l(x)

    history: ClassVar[list[Any]] = []
    cache = Cache()
    p = of(Caching(), (torch.randn(2, 4), history, cache))
    assert p.data_dependent
    assert history == []
    assert not cache.kept.any()


class Ledger:
    """A class that others count in."""

    total = 0


class Statistics:
    def __init__(self) -> None:
        self.calls = 0


STATISTICS = Statistics()


def book(amount: int) -> None:
    Ledger.total += amount
    STATISTICS.calls += amount


class Counting(nn.Module):
    """Writes to its class, to what that holds, to a class among its globals, and to one of an attribute."""

    counter = 0
    removed = "here"
    history: ClassVar[list[Any]] = []
    cache: ClassVar[dict[str, Any]] = {"nested": {"calls": 0}}
    state = torch.zeros(2)

    def __init__(self, fails: bool, real: bool) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.ledger = Ledger()
        self.fails, self.real = fails, real

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert type(self).counter == 0  # also in the runs that a profile repeats
        type(self).counter += 1
        Counting.last = x
        if "removed" in vars(Counting):
            del Counting.removed
        self.history.append(x)
        self.cache["nested"]["calls"] += 1
        self.cache["x"] = x
        Counting.state += 1
        self.ledger.__class__.seen = True
        book(3)
        x = self.l(x)
        if self.real and x.sum() > 1e9:
            x = self.l(x)
        if self.fails:
            raise ValueError("as asked")
        return x


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_classes_stay_as_they_are(fails: bool, real: bool) -> None:
    before, ledger, state = dict(vars(Counting)), dict(vars(Ledger)), Counting.state
    workload = tp.Workload(Counting(fails, real), example_inputs=torch.randn(2, 4), loss=lambda o, _: o.sum())
    if fails:
        with pytest.raises(ModelError, match="as asked"):
            profile(workload)
    else:
        p = profile(workload)
        assert p.forward_flops == 2 * 2 * 4 * 4
        assert p.data_dependent == real
    assert dict(vars(Counting)) == before
    assert dict(vars(Ledger)) == ledger
    assert Counting.history == []
    assert Counting.cache == {"nested": {"calls": 0}}
    assert Counting.state is state
    assert state.tolist() == [0, 0]
    assert STATISTICS.calls == 0
