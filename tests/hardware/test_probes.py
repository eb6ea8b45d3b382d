from __future__ import annotations

import gc
import logging
import math
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainpilot.hardware import probes
from trainpilot.hardware.probes import FIGURES, run_probes

CPU = probes._Context(torch.device("cpu"), torch.float32)
PROBES = {probe.figure: probe for probe in probes._PROBES}


def test_all_figures_of_this_machine_and_nothing_left_changed() -> None:
    threads, collecting, random_state = torch.get_num_threads(), gc.isenabled(), torch.get_rng_state()
    gc.disable()
    try:
        with torch.no_grad():
            figures = run_probes("cpu", 1, "float32")
            assert not torch.is_grad_enabled()
        assert not gc.isenabled()
    finally:
        if collecting:
            gc.enable()
    assert set(figures) == set(FIGURES)
    assert all(math.isfinite(value) and value > 0 for value in figures.values())
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random_state)
    forward, backward = figures["conv_forward_flops_per_s"], figures["conv_backward_flops_per_s"]
    assert min(forward, backward) <= figures["conv_flops_per_s"] <= max(forward, backward)


@pytest.mark.parametrize(
    "figure",
    ["matmul_flops_per_s", "small_matmul_flops_per_s", "conv_forward_flops_per_s", "conv_backward_flops_per_s"],
)
def test_flops_agree_with_torchs_counter(figure: str) -> None:
    work = PROBES[figure].make(CPU, 16)
    with FlopCounterMode(display=False) as counter:
        work.call()
    assert work.amount == counter.get_total_flops()


def test_flops_where_torchs_counter_is_wrong() -> None:
    # Depthwise: 2 * 8 images * 4 channels * 28 * 28 * 9 taps forward, twice that backward.
    assert PROBES["depthwise_conv_flops_per_s"].make(CPU, 4).amount == 3 * 2 * 8 * 4 * 28 * 28 * 9
    # Attention: two products of 2 * 16 heads * length^2 * 64 forward, twice that backward.
    assert PROBES["attention_flops_per_s"].make(CPU, 8).amount == 3 * 2 * 2 * 16 * 8 * 8 * 64
    # LSTM: 2 * batch 16 * 16 steps * 4 gates * hidden * (in + hidden) forward; backward: both weight products (the
    # same again) and the data product of the state alone (half of it).
    assert PROBES["rnn_flops_per_s"].make(CPU, 6).amount == 2.5 * 2 * 16 * 16 * 4 * 6 * 12


def test_bytes_of_the_triad_and_of_the_optimizer() -> None:
    assert PROBES["memory_bytes_per_s"].make(CPU, 1).amount == 3 * 4 * 2**20
    # AdamW in float32: reads weight, gradient and two moments, writes all but the gradient.
    assert PROBES["optimizer_bytes_per_s"].make(CPU, 1000).amount == 7 * 4 * 1000


def _timed(seconds_per_call: float, amount: float = 6.0) -> tuple[float, float, list[int]]:
    """Time a probe whose call takes exactly ``seconds_per_call`` times its scale on a made-up clock."""
    now = 0.0
    scales: list[int] = []

    def make(context: Any, scale: int) -> probes._Work:
        scales.append(scale)

        def call() -> None:
            nonlocal now
            now += seconds_per_call * scale

        return probes._Work(call, amount)

    probe = probes._Probe("example_s", make, (1, 10))
    best, found = probes._time_probe(probe, CPU, lambda: None, lambda: now)
    return best, found, scales


def test_time_of_one_call() -> None:
    best, amount, scales = _timed(1e-4)
    assert best == pytest.approx(1e-3)
    assert amount == 6.0
    assert scales == [1, 10]


def test_slow_work_stays_at_the_small_scale() -> None:
    best, _, scales = _timed(0.5)
    assert best == pytest.approx(0.5)
    assert scales == [1]


def test_the_best_of_several_windows_counts() -> None:
    durations = iter([9.0, 0.02, 0.02, 0.05, 0.02, *[0.07] * 50])
    now = 0.0

    def call() -> None:
        nonlocal now
        now += next(durations)

    probe = probes._Probe("example_s", lambda context, scale: probes._Work(call, 1.0), (1,))
    best, _ = probes._time_probe(probe, CPU, lambda: None, lambda: now)
    assert best == pytest.approx(0.02)


def test_an_operator_that_the_device_lacks_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(context: Any, scale: int) -> probes._Work:
        raise RuntimeError("\"softmax\" not implemented for 'Half'\nmore lines")

    kept = probes._Probe("dispatch_s", probes._dispatch, (5,))
    monkeypatch.setattr(probes, "_PROBES", (probes._Probe("softmax_bytes_per_s", fail, (1,)), kept))
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        figures = run_probes("cpu", 1, "float16")
    assert set(figures) == {"dispatch_s"}
    assert "softmax_bytes_per_s is unknown on cpu with float16" in caplog.text


def test_state_is_restored_when_a_probe_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(context: Any, scale: int) -> probes._Work:
        raise KeyboardInterrupt

    monkeypatch.setattr(probes, "_PROBES", (probes._Probe("dispatch_s", interrupt, (1,)),))
    threads, random_state = torch.get_num_threads(), torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        run_probes("cpu", threads + 1, "float32")
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), random_state)
    assert gc.isenabled()
