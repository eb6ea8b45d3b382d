"""Amounts of work of one step by fine kinds of operators: the columns that the additive model of a step prices.

Each kind of operator takes a time that is a sum of a few amounts: a matrix product of (m, k) and (k, n) its FLOPs,
the traffic of either operand and of the result, and a dispatch. With positive prices such a sum grows with every size,
gives small and thin operands their lower rate, and stays physical far outside of what was measured. Traffic of
operators that stream their operands is split by how much one call moves, since caches and threads make its price
depend on that.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Entry = tuple[str, float]
Group = Mapping[str, Any]

# Bytes of one call up to which the private cache of a core holds them, then the shared one, then fresh memory pages
# are the usual case. Their values only decide where prices may differ, so they are the same for every machine.
STREAM_LIMITS: tuple[float, ...] = (128 * 2**10, 2 * 2**20, 32 * 2**20, math.inf)
DIRECTIONS = ("forward", "backward")
_CONV_PASSES = ("forward", "grad_input", "grad_weight")
_CONV_KINDS = ("spatial", "pointwise", "grouped", "transposed", "conv1d")
_LANES = 8  # channels that one vector of float32 holds on most CPUs: kernels compute whole vectors
_FLOAT_BYTES = 4


def _names(text: str) -> list[str]:
    return text.split()


# Operators that compute so much for each element that this counts, and whose cost is known one by one ...
_COSTLY = tuple(
    _names("""
        gelu gelu_backward sqrt div tanh tanh_backward silu silu_backward sigmoid sigmoid_backward exp log pow
        threshold_backward relu masked_fill hardswish hardswish_backward cos sin rsqrt where
    """)
)
# ... and others that compute an exponential or the like; the rest are additions and comparisons.
_TRANSCENDENTAL = frozenset(
    name + suffix
    for name in _names("""
        erf softplus mish log_sigmoid elu hardsigmoid erfinv log1p expm1 logaddexp atan2
    """)
    for suffix in ("", "_backward", "_forward")
)
_FILLS = frozenset(_names("fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full"))
_SCATTERED = frozenset(
    _names("""
        index index_select gather scatter scatter_add index_add index_put _index_put_impl _unsafe_index
        _unsafe_index_put take put masked_select masked_scatter
    """)
)
_STREAMS = (
    "elementwise",
    "fresh",
    "reduction",
    "fill",
    "copy",
    "concatenation",
    "scattered",
    "batch_norm_forward",
    "batch_norm_backward",
    "other_norm",
    "optimizer",
)


@functools.cache
def _stream_names(kind: str) -> tuple[str, ...]:
    return tuple(f"{kind}.bytes{level}" for level in range(len(STREAM_LIMITS)))


AMOUNTS: tuple[str, ...] = (
    *(
        f"{kind}.{way}.{what}"
        for kind in ("gemm", "bmm")
        for way in DIRECTIONS
        for what in ("flops", "left", "right", "result")
    ),
    "gemm.calls",
    "bmm.calls",
    "bmm.batches",
    *(f"conv.{kind}.{step}.flops" for kind in _CONV_KINDS for step in _CONV_PASSES),
    *(f"conv.{step}.{what}" for step in _CONV_PASSES for what in ("padding", "input", "output", "weight", "calls")),
    "conv.groups",
    *(f"depthwise.{step}.{what}" for step in _CONV_PASSES for what in ("flops", "input", "output", "planes", "calls")),
    *(
        f"attention.{way}.{what}"
        for way in DIRECTIONS
        for what in ("flops", "causal_flops", "scores", "bytes", "heads")
    ),
    "attention.calls",
    *(f"rnn.{way}.{what}" for way in DIRECTIONS for what in ("flops", "weights", "bytes", "steps")),
    "rnn.calls",
    *(f"{kind}.{way}.{what}" for kind in ("embedding", "bag") for way in DIRECTIONS for what in ("rows", "bytes")),
    "embedding.table",
    "embedding.calls",
    *(
        f"{kind}.{way}.{what}"
        for kind in ("softmax", "safe_softmax")
        for way in DIRECTIONS
        for what in ("bytes", "rows")
    ),
    *(f"norm.{way}.rows" for way in DIRECTIONS),
    "norm.calls",
    *(f"pool.{kind}.{way}" for kind in ("max", "mean", "resize") for way in DIRECTIONS),
    *(f"costly.{name}" for name in (*_COSTLY, "other")),
    "random.bytes",
    *(name for kind in _STREAMS for name in _stream_names(kind)),
    "small.calls",
    "view.calls",
    "optimizer.calls",
    "other.bytes",
    "step",
)
AMOUNT_INDEX: Mapping[str, int] = {name: position for position, name in enumerate(AMOUNTS)}
# These count dispatches, rows of weights and the like: they do not grow with the batch.
FIXED_AMOUNTS = frozenset(name for name in AMOUNTS if name.endswith("calls") or name in ("step", "conv.groups"))


def fine_amounts(group: Group) -> Iterator[Entry]:
    """Amounts of one group of alike operations, by name of ``AMOUNTS``; ``step`` is not among them.

    Args:
        group: An ``OpGroup`` as a dict, with valid counts.
    """
    if not group["calls"]:
        return
    if group["phase"] == "optimizer":
        yield "optimizer.calls", group["calls"]
        yield from _stream("optimizer", _traffic(group), group["calls"])
        yield from _pointwise(group)
        return
    kind = _KINDS.get(group["op_class"], _other)
    try:
        yield from list(kind(group, group["shape"], base_name(group["op"])))
    except (KeyError, ZeroDivisionError):
        yield from _without_sizes(group)


def scaled_amounts(group: Group, batch_scale: float) -> Iterator[Entry]:
    """The same at another batch size: so many times as much of everything but the optimizer and what is fixed."""
    scale = 1.0 if group["phase"] == "optimizer" else batch_scale
    for name, amount in fine_amounts(group):
        yield name, amount if name in FIXED_AMOUNTS else amount * scale


def _without_sizes(group: Group) -> Iterator[Entry]:
    """A kernel whose sizes are not those that its class usually tells: its counts alone."""
    flops, traffic, calls = _PLAIN.get(group["op_class"], ("gemm.forward.flops", "other.bytes", "view.calls"))
    yield flops, group["flops"]
    yield traffic, _traffic(group)
    yield calls, group["calls"]


@functools.lru_cache(maxsize=4096)
def base_name(op: str) -> str:
    """``aten.add_.Tensor`` is ``add``."""
    name = _name(op)
    return name if name.endswith("__") else name.rstrip("_")


def _name(op: str) -> str:
    return op.split(".")[1] if "." in op else op


def _in_place(op: str) -> bool:
    name = _name(op)
    return name.endswith("_") and not name.endswith("__")


def _traffic(group: Group) -> float:
    return float(group["bytes_read"]) + float(group["bytes_written"])


def _way(group: Group, base: str) -> str:
    return "backward" if "backward" in base or group["phase"] == "backward" else "forward"


def _stream(kind: str, traffic: float, calls: float) -> Iterator[Entry]:
    each, below = traffic / calls, 0.0
    for name, limit in zip(_stream_names(kind), STREAM_LIMITS, strict=True):
        part = min(each, limit) - below
        if part <= 0:
            return
        yield name, part * calls
        below = limit


def _matmul(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    m, n, k, batch, calls = shape["m"], shape["n"], shape["k"], shape.get("batch", 1), group["calls"]
    kind = "bmm" if batch > 1 or base in ("bmm", "baddbmm") else "gemm"
    products = calls * batch
    elements = products * (m * k + k * n + m * n)
    each = min(max(_traffic(group) / elements, 1.0), 8.0) if elements else _FLOAT_BYTES
    way = _way(group, base)
    yield f"{kind}.{way}.flops", group["flops"]
    yield f"{kind}.{way}.left", products * m * k * each
    yield f"{kind}.{way}.right", products * k * n * each
    yield f"{kind}.{way}.result", products * m * n * each
    yield f"{kind}.calls", calls
    if kind == "bmm":
        yield "bmm.batches", products


def _conv(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    calls, groups, kernel = group["calls"], shape["groups"], shape["kernel"]
    into, out = shape["cin"] // groups, shape["cout"] // groups
    passes: Sequence[str] = ("forward",)
    if base == "convolution_backward":
        passes = [name for name in _CONV_PASSES[1:] if shape.get(name, 1)]
    kind = _conv_kind(shape)
    inputs = calls * shape["n"] * shape["cin"] * shape["in_spatial"] * _FLOAT_BYTES
    outputs = calls * shape["n"] * shape["cout"] * shape["out_spatial"] * _FLOAT_BYTES
    weights = calls * shape["cout"] * into * kernel * _FLOAT_BYTES
    depthwise = group["op_class"] == "depthwise_conv"
    padded = _whole_vectors(into) * _whole_vectors(out) / (into * out) - 1
    for name in passes:
        flops = group["flops"] / len(passes)
        place = f"depthwise.{name}" if depthwise else f"conv.{name}"
        yield (f"{place}.flops" if depthwise else f"conv.{kind}.{name}.flops"), flops
        yield f"{place}.input", inputs
        yield f"{place}.output", outputs
        yield f"{place}.calls", calls
        if depthwise:
            yield f"{place}.planes", calls * shape["n"] * shape["cin"]
        else:
            yield f"{place}.padding", flops * padded
            yield f"{place}.weight", weights
    if groups > 1 and not depthwise:
        yield "conv.groups", calls * groups * len(passes)


def _conv_kind(shape: Mapping[str, int]) -> str:
    if shape.get("transposed"):
        return "transposed"
    if shape.get("dimensions", 2) == 1:
        return "conv1d"
    if shape["groups"] > 1:
        return "grouped"
    return "pointwise" if shape["kernel"] == 1 else "spatial"


def _whole_vectors(channels: int) -> int:
    return -(-channels // _LANES) * _LANES


def _attention(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    way, calls = _way(group, base), group["calls"]
    heads = calls * shape["batch"] * shape["heads"]
    yield f"attention.{way}.{'causal_flops' if shape.get('causal') else 'flops'}", group["flops"]
    yield f"attention.{way}.scores", heads * shape["length"] * shape["key_length"] * _FLOAT_BYTES
    yield f"attention.{way}.bytes", _traffic(group)
    yield f"attention.{way}.heads", heads
    yield "attention.calls", calls


def _rnn(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    way, steps = _way(group, base), group["calls"] * shape["steps"]
    yield f"rnn.{way}.flops", group["flops"]
    yield f"rnn.{way}.weights", steps * shape["gates"] * shape["hidden"] ** 2 * _FLOAT_BYTES
    yield f"rnn.{way}.bytes", _traffic(group)
    yield f"rnn.{way}.steps", steps
    yield "rnn.calls", group["calls"]


def _embedding(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    way, calls = _way(group, base), group["calls"]
    rows = calls * shape["rows"]
    kind = "bag" if "embedding_bag" in base else "embedding"
    yield f"{kind}.{way}.rows", rows
    yield f"{kind}.{way}.bytes", rows * shape["width"] * _FLOAT_BYTES
    if way == "backward":  # its gradient is as large as the table
        yield "embedding.table", calls * shape["vocabulary"] * shape["width"] * _FLOAT_BYTES
    yield "embedding.calls", calls


def _rows(group: Group, shape: Mapping[str, int]) -> float:
    """Rows that are reduced one by one, of all calls."""
    return float(group["calls"] * shape.get("elements", 0) / max(1, shape.get("last", 1)))


def _softmax(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    way = _way(group, base)
    kind = "safe_softmax" if base == "_safe_softmax" else "softmax"
    yield f"{kind}.{way}.bytes", _traffic(group)
    yield f"{kind}.{way}.rows", _rows(group, shape)
    yield "small.calls", group["calls"]


def _norm(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:
    by_batch = "batch_norm" in base
    way = _way(group, base)
    yield from _stream(f"batch_norm_{way}" if by_batch else "other_norm", _traffic(group), group["calls"])
    if not by_batch:
        yield f"norm.{way}.rows", _rows(group, shape)
    yield "norm.calls", group["calls"]


def _pool(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    kind = "max" if "max" in base else "resize" if "upsample" in base else "mean"
    yield f"pool.{kind}.{_way(group, base)}", _traffic(group)
    yield "small.calls", group["calls"]


def _random(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    yield "random.bytes", group["bytes_written"]
    yield "small.calls", group["calls"]


def _pointwise(group: Group) -> Iterator[Entry]:
    """What one operator on each element costs beside the traffic: its arithmetic, and memory that is new."""
    base, written = base_name(group["op"]), float(group["bytes_written"])
    if written and not _in_place(group["op"]):
        yield from _stream("fresh", written, group["calls"])
    if base in _COSTLY:
        yield f"costly.{base}", written
    elif base in _TRANSCENDENTAL:
        yield "costly.other", written


def _elementwise(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    yield from _pointwise(group)
    yield from _streamed("elementwise", group)


def _reduction(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    yield from _streamed("reduction", group)


def _copy(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    kind = "copy"
    if base in _FILLS or not group["bytes_read"]:
        kind = "fill"
    elif base in ("cat", "stack"):
        kind = "concatenation"
    elif base in _SCATTERED:
        kind = "scattered"
    yield from _streamed(kind, group)


def _streamed(kind: str, group: Group) -> Iterator[Entry]:
    yield from _stream(kind, _traffic(group), group["calls"])
    yield "small.calls", group["calls"]


def _other(group: Group, shape: Mapping[str, int], base: str) -> Iterator[Entry]:  # noqa: ARG001
    if group["flops"]:
        yield "gemm.forward.flops", group["flops"]
    if traffic := _traffic(group):
        yield "other.bytes", traffic
    yield "view.calls", group["calls"]


_PLAIN: Mapping[str, tuple[str, str, str]] = {
    "matmul": ("gemm.forward.flops", "gemm.forward.left", "gemm.calls"),
    "conv": ("conv.spatial.forward.flops", "conv.forward.input", "conv.forward.calls"),
    "depthwise_conv": ("depthwise.forward.flops", "depthwise.forward.input", "depthwise.forward.calls"),
    "attention": ("attention.forward.flops", "attention.forward.bytes", "attention.calls"),
    "rnn": ("rnn.forward.flops", "rnn.forward.bytes", "rnn.calls"),
    "embedding": ("gemm.forward.flops", "embedding.forward.bytes", "embedding.calls"),
}
_KINDS: Mapping[str, Callable[[Group, Mapping[str, int], str], Iterator[Entry]]] = {
    "matmul": _matmul,
    "conv": _conv,
    "depthwise_conv": _conv,
    "attention": _attention,
    "rnn": _rnn,
    "embedding": _embedding,
    "softmax": _softmax,
    "norm": _norm,
    "pool": _pool,
    "random": _random,
    "elementwise": _elementwise,
    "reduction": _reduction,
    "copy": _copy,
}
