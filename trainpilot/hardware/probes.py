"""Calibration probes: small pieces of work whose FLOPs and bytes are known, timed on one device.

Conventions, the same as those of a profile: one multiply-add is 2 FLOPs; only matrix products, convolutions,
recurrences and attention are counted; the backward pass of such an operator costs twice its forward pass; bytes are
those of all input tensors plus all output tensors, whatever the caches save.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

# Raise when a probe changes, so that figures of the former kind are not mixed with new ones.
PROBES_VERSION = 1

_WINDOW_S = 0.01  # 100 ticks of a clock that is worse than any perf_counter in use
_PROBE_BUDGET_S = 0.1
_SLOW_CALL_S = 0.003
_LEAST_WINDOWS = 3

Call = Callable[[], Any]


@dataclass(frozen=True)
class _Work:
    """A piece of work.

    Attributes:
        call: Does it once.
        amount: FLOPs, bytes, or number of repetitions in one call.
    """

    call: Call
    amount: float


@dataclass(frozen=True)
class _Probe:
    """A figure and how it is found.

    Attributes:
        figure: Its name; one ending in ``_per_s`` is amount / time, one ending in ``_s`` is time / amount.
        make: ``make(context, scale)`` prepares the work.
        scales: From small to large; the largest is used unless a smaller one is slow already, as half precision
            without hardware support is.
    """

    figure: str
    make: Callable[[_Context, int], _Work]
    scales: tuple[int, ...]


@dataclass(frozen=True)
class _Context:
    device: torch.device
    dtype: torch.dtype

    def normal(self, *shape: int, grad: bool = False) -> torch.Tensor:
        """Random numbers of the compute type."""
        import torch

        return torch.randn(*shape, device=self.device).to(self.dtype).requires_grad_(grad)


def run_probes(
    device: str, threads: int, dtype: str, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Run all probes; takes a few seconds.

    Thread count, random state, gradient mode and garbage collection are afterwards as they were.

    Args:
        device: A torch device, e.g. ``cpu``.
        threads: CPU threads to use.
        dtype: Compute type of the tensors; weights and optimizer state stay float32, as with autocast.
        clock: Gives seconds.

    Returns:
        Figures by name. A probe whose operator the device lacks at this dtype is left out.
    """
    import torch

    context = _Context(torch.device(device), getattr(torch, dtype))
    times: dict[str, float] = {}
    amounts: dict[str, float] = {}
    with _undisturbed(threads, context.device):
        synchronize = _synchronizer(context.device)
        for probe in _PROBES:
            try:
                times[probe.figure], amounts[probe.figure] = _time_probe(probe, context, synchronize, clock)
            except (RuntimeError, NotImplementedError) as error:
                # An out-of-memory or a missing kernel: the figure stays unknown, the others are still good.
                message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                logger.warning("calibration: %s is unknown on %s with %s: %s", probe.figure, device, dtype, message)
    figures = {
        name: amounts[name] / times[name] if name.endswith("_per_s") else times[name] / amounts[name] for name in times
    }
    if {"conv_forward_flops_per_s", "conv_backward_flops_per_s"} <= set(figures):
        forward, backward = figures["conv_forward_flops_per_s"], figures["conv_backward_flops_per_s"]
        figures["conv_flops_per_s"] = 3 / (1 / forward + 2 / backward)
    return figures


def _time_probe(probe: _Probe, context: _Context, synchronize: Call, clock: Callable[[], float]) -> tuple[float, float]:
    """Return (best time of one call in s, its amount)."""
    for scale in probe.scales:
        work = probe.make(context, scale)
        work.call()  # the first call allocates, chooses kernels and starts threads
        single = _time_calls(work.call, 1, synchronize, clock)
        if single > _SLOW_CALL_S:
            break
    calls = max(1, round(_WINDOW_S / single)) if single > 0 else 1000
    windows: list[float] = []
    end = clock() + _PROBE_BUDGET_S
    while len(windows) < _LEAST_WINDOWS or clock() < end:
        windows.append(_time_calls(work.call, calls, synchronize, clock) / calls)
    return min(windows), work.amount


def _time_calls(call: Call, calls: int, synchronize: Call, clock: Callable[[], float]) -> float:
    synchronize()
    begin = clock()
    for _ in range(calls):
        call()
    synchronize()
    return clock() - begin


def _synchronizer(device: torch.device) -> Call:
    if device.type == "cpu":
        return lambda: None
    import torch

    return lambda: torch.accelerator.synchronize(device)


@contextmanager
def _undisturbed(threads: int, device: torch.device) -> Iterator[None]:
    import torch

    threads_before, collecting = torch.get_num_threads(), gc.isenabled()
    device_type = "cuda" if device.type == "cpu" else device.type
    devices: list[Any] = [] if device.type == "cpu" else [device.index or 0]
    with torch.random.fork_rng(devices=devices, device_type=device_type), torch.enable_grad():
        # Not torch.manual_seed: that seeds every device, also those whose state is not kept here.
        torch.default_generator.manual_seed(0)
        if device.type != "cpu":
            getattr(torch, device.type).manual_seed(0)
        torch.set_num_threads(threads)
        gc.disable()  # a collection inside a window would be taken for the operator's time
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)
            if collecting:
                gc.enable()


def _nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _without_grad(call: Call) -> Call:
    import torch

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def _matmul(context: _Context, n: int) -> _Work:
    a, b = context.normal(n, n), context.normal(n, n)
    return _Work(lambda: a @ b, 2.0 * n**3)


def _small_matmul(context: _Context, n: int) -> _Work:
    a, b = context.normal(32, n), context.normal(n, n)  # a linear layer at a usual batch size
    return _Work(lambda: a @ b, 2.0 * 32 * n * n)


def _convolution(context: _Context, channels: int, groups: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    x = context.normal(8, channels, 28, 28)
    weight = context.normal(channels, channels // groups, 3, 3)
    return x, weight, 2.0 * x.numel() * (channels // groups) * 9


def _convolve(x: torch.Tensor, weight: torch.Tensor, groups: int) -> Call:
    from torch.nn import functional

    return lambda: functional.conv2d(x, weight, padding=1, groups=groups)


def _convolve_back(x: torch.Tensor, weight: torch.Tensor, groups: int) -> Call:
    import torch

    gradient = torch.ones_like(x)
    mask = [True, True, False]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups, mask
    )


def _conv_forward(context: _Context, channels: int) -> _Work:
    x, weight, flops = _convolution(context, channels, 1)
    return _Work(_convolve(x, weight, 1), flops)


def _conv_backward(context: _Context, channels: int) -> _Work:
    x, weight, flops = _convolution(context, channels, 1)
    return _Work(_convolve_back(x, weight, 1), 2 * flops)


def _depthwise(context: _Context, channels: int) -> _Work:
    x, weight, flops = _convolution(context, channels, channels)
    forward, backward = _convolve(x, weight, channels), _convolve_back(x, weight, channels)
    return _Work(lambda: (forward(), backward()), 3 * flops)


def _attention(context: _Context, length: int) -> _Work:
    import torch
    from torch.nn import functional

    query, key, value = (context.normal(4, 4, length, 64, grad=True) for _ in range(3))
    gradient = context.normal(4, 4, length, 64)

    def run() -> Any:
        out = functional.scaled_dot_product_attention(query, key, value)
        return torch.autograd.grad(out, (query, key, value), gradient)

    return _Work(run, 3 * 4.0 * 4 * 4 * length * length * 64)


def _recurrent(context: _Context, hidden: int) -> _Work:
    import torch

    length, batch = 16, 16
    lstm = torch.nn.LSTM(hidden, hidden, batch_first=True, device=context.device).to(context.dtype)
    x, parameters = context.normal(batch, length, hidden), list(lstm.parameters())

    def run() -> Any:
        return torch.autograd.grad(lstm(x)[0].sum(), parameters)

    # The input needs no gradient: of the four products per gate (input and state, each by data and by weight),
    # the input's data product is not made.
    forward = 2.0 * batch * length * 4 * hidden * (hidden + hidden)
    return _Work(run, forward + forward + forward / 2)


def _memory(context: _Context, mebi_elements: int) -> _Work:
    import torch

    count = mebi_elements << 20
    if context.device.type != "cpu":
        count *= 8  # beyond the larger caches, and long enough to hide the launch
    a, b, out = (torch.ones(count, device=context.device, dtype=context.dtype) for _ in range(3))
    return _Work(lambda: torch.add(a, b, alpha=3.0, out=out), _nbytes(a, b, out))


def _elementwise(context: _Context, count: int) -> _Work:
    import torch

    x = context.normal(64, count)
    return _Work(lambda: torch.relu(x), 2 * _nbytes(x))


def _transcendental(context: _Context, count: int) -> _Work:
    from torch.nn import functional

    x = context.normal(64, count)
    return _Work(lambda: functional.gelu(x), 2 * _nbytes(x))


def _embedding(context: _Context, rows: int) -> _Work:
    import torch
    from torch.nn import functional

    table = context.normal(rows, 128)
    ids = torch.randint(0, rows, (32, 64), device=context.device)
    out = functional.embedding(ids, table)
    return _Work(lambda: functional.embedding(ids, table), 2 * _nbytes(out) + _nbytes(ids))


def _layer_norm(context: _Context, width: int) -> _Work:
    from torch.nn import functional

    x, weight, bias = context.normal(1024, width), context.normal(width), context.normal(width)
    return _Work(lambda: functional.layer_norm(x, (width,), weight, bias), 2 * _nbytes(x))


def _batch_norm(context: _Context, channels: int) -> _Work:
    import torch
    from torch.nn import functional

    x = context.normal(8, channels, 28, 28)
    weight, bias = torch.ones(channels, device=context.device), torch.zeros(channels, device=context.device)
    return _Work(lambda: functional.batch_norm(x, None, None, weight, bias, training=True), 2 * _nbytes(x))


def _softmax(context: _Context, width: int) -> _Work:
    x = context.normal(1024, width)
    return _Work(lambda: x.softmax(-1), 2 * _nbytes(x))


def _reduction(context: _Context, count: int) -> _Work:
    x = context.normal(64, count)
    return _Work(lambda: x.sum(0), _nbytes(x) + _nbytes(x[0]))


def _pool(context: _Context, channels: int) -> _Work:
    from torch.nn import functional

    x = context.normal(8, channels, 28, 28)
    return _Work(lambda: functional.max_pool2d(x, 2), _nbytes(x) + _nbytes(x) // 4)


def _copy(context: _Context, count: int) -> _Work:
    x = context.normal(64, count).t()
    return _Work(lambda: x.contiguous(), 2 * _nbytes(x))


def _random(context: _Context, count: int) -> _Work:
    import torch

    x = context.normal(64, count)
    return _Work(lambda: torch.empty_like(x).bernoulli_(0.5), 2 * _nbytes(x))


def _optimizer(context: _Context, count: int) -> _Work:
    import torch

    parameter = torch.nn.Parameter(torch.randn(count, device=context.device))
    parameter.grad = torch.randn_like(parameter)
    # Weight, gradient and two moments are read, all but the gradient written: 7 float32 per weight.
    return _Work(torch.optim.AdamW([parameter]).step, 7.0 * 4 * count)


def _optimizer_tensor(context: _Context, tensors: int) -> _Work:
    import torch

    parameters = [torch.nn.Parameter(torch.randn(4, device=context.device)) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return _Work(torch.optim.AdamW(parameters).step, tensors)


def _dispatch(context: _Context, calls: int) -> _Work:
    x = context.normal(1)

    def run() -> None:
        for _ in range(calls):
            x.add_(0.0)

    return _Work(run, calls)


def _autograd_node(context: _Context, nodes: int) -> _Work:
    import torch

    x = context.normal(1, grad=True)

    def run() -> Any:
        y = x
        for _ in range(nodes):
            y = y * 1.0
        return torch.autograd.grad(y, x)

    return _Work(run, nodes)


def _step_overhead(context: _Context, width: int) -> _Work:
    import torch
    from torch.nn import functional

    model = torch.nn.Linear(width, width, device=context.device)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(1, width, device=context.device), torch.randn(1, width, device=context.device)
    half = context.dtype != torch.float32

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(context.device.type, dtype=context.dtype if half else None, enabled=half):
            loss = functional.mse_loss(model(x), y)
        torch.autograd.backward(loss)
        optimizer.step()

    return _Work(run, 1)


def _plain(make: Callable[[_Context, int], _Work]) -> Callable[[_Context, int], _Work]:
    """Run the work without recording gradients."""

    def made(context: _Context, scale: int) -> _Work:
        work = make(context, scale)
        return _Work(_without_grad(work.call), work.amount)

    return made


_PROBES = (
    _Probe("matmul_flops_per_s", _matmul, (128, 384, 1024)),
    _Probe("small_matmul_flops_per_s", _small_matmul, (32, 96, 256)),
    _Probe("conv_forward_flops_per_s", _plain(_conv_forward), (8, 24, 64)),
    _Probe("conv_backward_flops_per_s", _plain(_conv_backward), (8, 24, 64)),
    _Probe("depthwise_conv_flops_per_s", _plain(_depthwise), (8, 64)),
    _Probe("attention_flops_per_s", _attention, (16, 48, 128)),
    _Probe("rnn_flops_per_s", _recurrent, (16, 48, 128)),
    _Probe("memory_bytes_per_s", _memory, (1, 8)),
    _Probe("elementwise_bytes_per_s", _elementwise, (64, 4096)),
    _Probe("transcendental_bytes_per_s", _transcendental, (64, 4096)),
    _Probe("embedding_bytes_per_s", _embedding, (20_000,)),
    _Probe("layer_norm_bytes_per_s", _layer_norm, (32, 256)),
    _Probe("batch_norm_bytes_per_s", _batch_norm, (8, 64)),
    _Probe("softmax_bytes_per_s", _softmax, (32, 256)),
    _Probe("reduction_bytes_per_s", _reduction, (64, 4096)),
    _Probe("pool_bytes_per_s", _pool, (8, 64)),
    _Probe("copy_bytes_per_s", _copy, (64, 4096)),
    _Probe("random_bytes_per_s", _random, (64, 4096)),
    _Probe("optimizer_bytes_per_s", _optimizer, (10_000, 1_000_000)),
    _Probe("optimizer_tensor_s", _optimizer_tensor, (50,)),
    _Probe("dispatch_s", _plain(_dispatch), (200,)),
    _Probe("autograd_node_s", _autograd_node, (100,)),
    _Probe("step_overhead_s", _step_overhead, (1,)),
)

FIGURES = (*(probe.figure for probe in _PROBES), "conv_flops_per_s")
