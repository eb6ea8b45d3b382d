"""Fine amounts of work: each by hand for one call."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.predictors.rows import FIGURES
from trainpilot.errors import PredictorError
from trainpilot.predictors.amounts import AMOUNTS, FIXED_AMOUNTS, STREAM_LIMITS, fine_amounts
from trainpilot.predictors.prices import SPREADS, fine_unit_costs_s
from trainpilot.profiling.result import OP_CLASSES


def group(op, op_class, *, flops=0, read=0, written=0, calls=1, phase="forward", **shape):
    return {
        "op": op,
        "op_class": op_class,
        "phase": phase,
        "calls": calls,
        "flops": flops,
        "bytes_read": read,
        "bytes_written": written,
        "shape": shape,
    }


def amounts(found):
    total = Counter()
    for name, amount in fine_amounts(found):
        total[name] += amount
    return {name: amount for name, amount in total.items() if amount}


def test_a_matrix_product_has_the_traffic_of_each_operand():
    m, n, k = 8, 16, 32
    size = 4 * (m * k + k * n + m * n)
    found = amounts(
        group("aten.addmm", "matmul", flops=2 * m * n * k * 3, read=3 * size, calls=3, m=m, n=n, k=k, batch=1)
    )
    assert found == {
        "gemm.forward.flops": 2 * m * n * k * 3,
        "gemm.forward.left": 3 * 4 * m * k,
        "gemm.forward.right": 3 * 4 * k * n,
        "gemm.forward.result": 3 * 4 * m * n,
        "gemm.calls": 3,
    }


def test_a_batched_product_counts_its_products():
    found = amounts(group("aten.bmm", "matmul", flops=7, read=4 * 5 * 12, m=2, n=2, k=2, batch=5))
    assert found["bmm.batches"] == 5
    assert found["bmm.forward.left"] == pytest.approx(5 * 4 * 4)
    assert not any(name.startswith("gemm") for name in found)


def test_products_of_the_backward_pass_have_their_own_prices():
    found = amounts(group("aten.mm", "matmul", flops=9, read=4 * 12, m=2, n=2, k=2, phase="backward"))
    assert found["gemm.backward.flops"] == 9
    assert not any(name.startswith("gemm.forward") for name in found)


def conv(op, **changes):
    shape = {
        "n": 2,
        "cin": 3,
        "cout": 16,
        "groups": 1,
        "kernel": 9,
        "stride": 1,
        "in_spatial": 64,
        "out_spatial": 64,
        "dimensions": 2,
        "transposed": 0,
    }
    return group(op, changes.pop("op_class", "conv"), flops=1000, **{**shape, **changes})


def test_a_convolution_of_three_channels_computes_whole_vectors_of_eight():
    found = amounts(conv("aten.convolution"))
    assert found == {
        "conv.spatial.forward.flops": 1000,
        "conv.forward.input": 2 * 3 * 64 * 4,
        "conv.forward.output": 2 * 16 * 64 * 4,
        "conv.forward.weight": 16 * 3 * 9 * 4,
        "conv.forward.padding": pytest.approx(1000 * (8 / 3 - 1)),
        "conv.forward.calls": 1,
    }


def test_the_backward_pass_of_a_convolution_is_what_was_asked_for():
    both = amounts(conv("aten.convolution_backward", phase="backward", grad_input=1, grad_weight=1))
    assert both["conv.spatial.grad_input.flops"] == both["conv.spatial.grad_weight.flops"] == 500
    one = amounts(conv("aten.convolution_backward", phase="backward", grad_input=0, grad_weight=1))
    assert one["conv.spatial.grad_weight.flops"] == 1000
    assert not any("grad_input" in name for name in one)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"kernel": 1}, "conv.pointwise"),
        ({"groups": 3, "cout": 18}, "conv.grouped"),
        ({"transposed": 1}, "conv.transposed"),
        ({"dimensions": 1}, "conv.conv1d"),
        ({"op_class": "depthwise_conv", "groups": 3, "cout": 3}, "depthwise"),
    ],
)
def test_kinds_of_convolutions_have_their_own_rate(changes, kind):
    assert f"{kind}.forward.flops" in amounts(conv("aten.convolution", **changes))


def test_traffic_of_a_stream_is_split_by_what_one_call_moves():
    limit = STREAM_LIMITS[0]
    small = amounts(group("aten.add_", "elementwise", read=limit / 2, written=limit / 2, calls=1))
    assert small == {"elementwise.bytes0": limit, "small.calls": 1}
    large = amounts(group("aten.add_", "elementwise", read=2 * 5 * limit, calls=2))
    assert large == {"elementwise.bytes0": 2 * limit, "elementwise.bytes1": 2 * 4 * limit, "small.calls": 2}


def test_a_result_in_new_memory_costs_more_than_one_in_place():
    both = (
        group("aten.mul", "elementwise", read=8, written=4),
        group("aten.mul_.Tensor", "elementwise", read=8, written=4),
    )
    new, in_place = map(amounts, both)
    assert new == {**in_place, "fresh.bytes0": 4}
    update = amounts(group("aten.sqrt", "optimizer", read=8, written=4, phase="optimizer"))
    assert update == {"optimizer.calls": 1, "optimizer.bytes0": 12, "fresh.bytes0": 4, "costly.sqrt": 4}


def test_operators_of_one_class_that_cost_differently_are_apart():
    assert amounts(group("aten.gelu_backward", "elementwise", written=8))["costly.gelu_backward"] == 8
    assert amounts(group("aten.erfinv", "elementwise", written=8))["costly.other"] == 8
    assert "bag.forward.rows" in amounts(group("aten._embedding_bag", "embedding", rows=2, width=3, vocabulary=9))
    assert "safe_softmax.forward.bytes" in amounts(group("aten._safe_softmax", "softmax", read=8, elements=2, last=2))
    assert "fill.bytes0" in amounts(group("aten.zero_", "copy", written=8))
    assert "concatenation.bytes0" in amounts(group("aten.cat", "copy", read=8, written=8))
    assert "scattered.bytes0" in amounts(group("aten.index_select", "copy", read=8, written=8))


def test_attention_and_recurrent_layers():
    found = amounts(
        group(
            "aten._scaled_dot_product_flash_attention_for_cpu",
            "attention",
            flops=5,
            read=7,
            batch=2,
            heads=3,
            length=10,
            key_length=20,
            head_size=8,
            causal=1,
        )
    )
    assert found["attention.forward.causal_flops"] == 5
    assert found["attention.forward.scores"] == 2 * 3 * 10 * 20 * 4
    assert found["attention.forward.heads"] == 6
    found = amounts(group("aten.mkldnn_rnn_layer", "rnn", flops=5, steps=10, batch=2, input=4, hidden=8, gates=4))
    assert found["rnn.forward.steps"] == 10
    assert found["rnn.forward.weights"] == 10 * 4 * 64 * 4


def test_a_kernel_without_its_sizes_is_priced_by_its_counts():
    found = amounts(group("own.conv", "conv", flops=5, read=3, written=4, calls=2))
    assert found == {"conv.spatial.forward.flops": 5, "conv.forward.input": 7, "conv.forward.calls": 2}


@given(
    op_class=st.sampled_from(OP_CLASSES),
    flops=st.floats(0, 1e15),
    size=st.floats(0, 1e12),
    calls=st.integers(0, 10**5),
    phase=st.sampled_from(("forward", "loss", "backward", "optimizer")),
)
def test_every_amount_has_a_name_and_is_a_count(op_class, flops, size, calls, phase):
    for name, amount in fine_amounts(group("own.op", op_class, flops=flops, read=size, calls=calls, phase=phase)):
        assert name in AMOUNTS
        assert math.isfinite(amount)
        assert amount >= 0


def test_every_amount_has_a_price_above_zero_and_a_spread():
    costs = fine_unit_costs_s(FIGURES)
    assert len(costs) == len(SPREADS) == len(AMOUNTS)
    assert (costs > 0).all()
    assert min(SPREADS) > 0
    assert set(AMOUNTS) > FIXED_AMOUNTS


def test_a_figure_that_is_missing_is_named():
    with pytest.raises(PredictorError, match="dispatch_s"):
        fine_unit_costs_s({name: value for name, value in FIGURES.items() if name != "dispatch_s"})
