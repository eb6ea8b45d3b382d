from __future__ import annotations

import itertools
import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainpilot.backends import ExecutionSettings
from trainpilot.backends.conformance import example_inputs, example_targets, tiny_workload
from trainpilot.backends.simulated import SimulatedBackend, SimulatedDevice, VirtualClock
from trainpilot.errors import UsageError
from trainpilot.profiling import OP_CLASSES, profile

DEVICE = SimulatedDevice(flops_per_s=1e9, bytes_per_s=1e8, dispatch_s=1e-5, step_overhead_s=1e-3, setup_s=0.5)


def _features(**given: float) -> dict[str, float]:
    zero = {f"{kind}.{name}": 0.0 for kind in ("flops", "bytes", "calls") for name in OP_CLASSES}
    phases = {f"{kind}.{phase}": 1e30 for kind in ("flops", "bytes", "calls") for phase in ("forward", "backward")}
    return {**zero, **phases, **{name.replace("__", "."): value for name, value in given.items()}}


def test_the_formula_by_hand() -> None:
    features = _features(flops__matmul=2e9, bytes__matmul=3e8, calls__matmul=4, flops__conv=8e8, calls__copy=6)
    # 1 ms + 2 s of matmul + 3 s of traffic + 0.8e9 / (0.8 * 1e9) = 1 s of convolution + 10 dispatches of 10 us
    assert DEVICE.step_s(features, 1, "float32") == pytest.approx(1e-3 + 2.0 + 3.0 + 1.0 + 1e-4)
    assert DEVICE.step_s(features, 2, "float32") == pytest.approx(1e-3 + 1.0 + 3.0 + 0.5 + 1e-4)
    assert DEVICE.step_s(features, 1, "bfloat16") == pytest.approx(1e-3 + 1.0 + 3.0 + 0.5 + 1e-4)
    assert DEVICE.step_s(features, 1, "float32", share=0.5) == pytest.approx(1e-3 + 1.0 + 1.5 + 0.5 + 1e-4)


def test_flops_of_classes_bound_by_traffic_cost_nothing() -> None:
    assert DEVICE.step_s(_features(flops__elementwise=1e15), 1, "float32") == pytest.approx(1e-3)


def test_the_clock_advances_by_setup_first_step_and_steps() -> None:
    clock = VirtualClock(100.0)
    found = profile(tiny_workload())
    step = DEVICE.step_s(found.features, 1, "float32")
    begin = time.monotonic()
    with SimulatedBackend(DEVICE).prepare(tiny_workload(), clock=clock) as session:
        assert session.clock is clock
        assert clock() == pytest.approx(100.0 + 0.5 + found.param_bytes / 1e8)
        marks = []
        for _ in range(3):
            before = clock()
            session.step()
            marks.append(clock() - before)
        before = clock()
        session.step(example_inputs(4), example_targets(4))
        part = clock() - before
        before = clock()
        session.forward()
        forward = clock() - before
    assert marks == pytest.approx([3 * step, step, step])
    assert part == pytest.approx(DEVICE.step_s(found.features, 1, "float32", share=4 / 16))
    assert forward == pytest.approx(
        found.features["flops.forward"] / 1e9
        + found.features["bytes.forward"] / 1e8
        + found.features["calls.forward"] * 1e-5
    )
    assert time.monotonic() - begin < 60.0


def test_the_loss_is_a_formula() -> None:
    with SimulatedBackend().prepare(tiny_workload()) as session:
        assert [float(session.step()) for _ in range(3)] == pytest.approx([2.0, 1.8, 1.62])


def test_forward_is_the_real_model() -> None:
    with SimulatedBackend().prepare(tiny_workload()) as session:
        model = session.model.eval()
        with torch.no_grad():
            expected = model(example_inputs(5))
        assert torch.equal(session.forward(example_inputs(5)), expected)


def test_noise_is_seeded_and_never_makes_time_run_backwards() -> None:
    def times(seed: int) -> list[float]:
        with SimulatedBackend(noise=0.3, seed=seed).prepare(tiny_workload()) as session:
            marks = [session.clock()]
            for _ in range(20):
                session.step()
                marks.append(session.clock())
        return marks

    first, second, other = times(1), times(1), times(2)
    assert first == second
    assert first != other
    assert all(after > before for before, after in itertools.pairwise(first))


def test_constants_are_its_calibration() -> None:
    found = SimulatedBackend(DEVICE).calibration(ExecutionSettings(threads=2))
    assert found.figures["matmul_flops_per_s"] == 2e9
    assert found.figures["conv_flops_per_s"] == pytest.approx(1.6e9)
    assert found.figures["memory_bytes_per_s"] == 1e8
    assert found.figures["dispatch_s"] == 1e-5
    assert (found.backend, found.threads, found.dtype) == ("simulated", 2, "float32")


def test_a_clock_that_cannot_be_advanced() -> None:
    with pytest.raises(UsageError, match="VirtualClock"):
        SimulatedBackend().prepare(tiny_workload(), clock=time.perf_counter)


def test_negative_noise() -> None:
    with pytest.raises(UsageError, match="noise"):
        SimulatedBackend(noise=-0.1)


@given(
    st.dictionaries(
        st.sampled_from([f"{k}.{c}" for k in ("flops", "bytes", "calls") for c in OP_CLASSES]), st.floats(0, 1e15)
    ),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.integers(1, 64),
)
def test_times_are_positive_and_finite_and_grow_with_work(
    given_features: dict[str, float], dtype: str, threads: int
) -> None:
    features = {**_features(), **given_features}
    base = DEVICE.step_s(features, threads, dtype)
    more = DEVICE.step_s({name: 2 * value for name, value in features.items()}, threads, dtype)
    assert 0.0 < base <= more
    assert math.isfinite(more)
