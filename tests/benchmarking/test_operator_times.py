import time
from dataclasses import asdict

import pytest
import torch

from trainpilot.benchmarking.operator_times import _is_depthwise, _recorded, step_overhead, time_operators
from trainpilot.profiling.result import OpGroup


class Session:
    """A session of one linear layer and an optimizer, with a step that takes a known time."""

    def __init__(self):
        self.model = torch.nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 8)).sum().backward()
        self.optimizer.step()


def groups():
    return [asdict(OpGroup("forward", "aten.addmm", "matmul", 1, 128, 10, 10, {}))]


def test_calls_of_each_phase_are_counted():
    found = time_operators(Session(), groups(), steps=2, step_time_s=1e-3)
    addmm = next(o for o in found if o.op == "aten.addmm")
    assert (addmm.phase, addmm.op_class, addmm.calls) == ("forward", "matmul", 1)
    assert addmm.shapes == [[4], [2, 8], [8, 4]]
    backward = [o for o in found if o.phase == "backward"]
    assert any(o.op == "aten.mm" for o in backward)
    assert any(o.phase == "optimizer" for o in found)
    assert next(o for o in found if o.op == "aten.mm").op_class == "other"  # not in the table that was given


def test_a_sum_that_disagrees_with_the_step_is_marked():
    found = time_operators(Session(), groups(), steps=1, step_time_s=10.0)
    assert not any(o.agrees for o in found)
    assert found[0].agreement < 0.1


def test_the_fastest_of_several_steps_counts(monkeypatch):
    session = Session()
    original = session.step
    calls = 0

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x

    def step():
        nonlocal calls
        calls += 1
        original()

    session.step = step
    time_operators(session, groups(), steps=3, step_time_s=1e-3)
    assert calls == 3


def test_nothing_is_recorded_afterwards():
    with _recorded() as record:
        torch.ones(3) + 1
    before = sum(map(len, record.values()))
    torch.ones(3) + 1
    assert before > 0
    assert sum(map(len, record.values())) == before


def test_hooks_are_gone_also_when_a_step_raises():
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    with pytest.raises(RuntimeError, match="half way"), _recorded():
        raise RuntimeError("half way")
    assert not _global_optimizer_pre_hooks
    assert not _global_optimizer_post_hooks


def test_the_overhead_is_a_number_per_step_and_call():
    overhead = step_overhead()
    assert abs(overhead.per_call_s) < 1e-2
    begin = time.perf_counter()
    assert step_overhead() is overhead  # found once a process
    assert time.perf_counter() - begin < 0.1


@pytest.mark.parametrize(("groups_", "expected"), [(8, True), (2, False), (1, False)])
def test_depthwise_convolutions_are_a_class_of_their_own(groups_, expected):
    x, weight = torch.ones(2, 8, 6, 6), torch.ones(8, 8 // groups_, 3, 3)
    assert _is_depthwise("aten.convolution.default", (x, weight, None)) is expected
    gradient = torch.ones(2, 8, 4, 4)
    assert _is_depthwise("aten.convolution_backward.default", (gradient, x, weight)) is expected
    assert not _is_depthwise("aten.mm.default", (x, weight))
