"""FLOPs, parameters and structure against values worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

import trainpilot as tp
from trainpilot.errors import LossRequiredError, ModelError, NothingToTrainError
from trainpilot.profiling import count_operations, profile


def summed(outputs: Any, targets: Any) -> torch.Tensor:
    return outputs.sum() if isinstance(outputs, torch.Tensor) else outputs[0].sum()


def of(model: nn.Module, inputs: Any, **options: Any) -> tp.WorkloadProfile:
    return profile(tp.Workload(model, example_inputs=inputs, **{"loss": summed, **options}))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(100, 16)
        self.h = nn.Linear(16, 100, bias=False)
        self.h.weight = self.e.weight

    def forward(self, x):
        return self.h(self.e(x))


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.l(x))
        return x


def test_a01_tied_weights_count_once_and_the_head_counts_flops() -> None:
    p = of(Tied(), torch.randint(0, 100, (2, 5)))
    assert (p.params, p.param_bytes, p.forward_flops, p.backward_flops) == (1_600, 6_400, 32_000, 64_000)
    assert p.memory.weights_bytes == 6_400
    assert p.memory.gradients_bytes == 6_400


def test_a01_reused_layer_counts_every_call() -> None:
    p = of(Reused(), torch.randn(4, 8))
    assert (p.params, p.param_bytes, p.forward_flops, p.backward_flops) == (72, 288, 1_536, 2_560)
    assert (p.layers, p.depth) == (1, 3)


def test_a02_attention_function_forward_and_backward() -> None:
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    counts = count_operations(lambda: F.scaled_dot_product_attention(q, q, q), backward=True)
    assert counts.forward_flops == 4 * 2 * 4 * 16 * 16 * 8 == 65_536
    assert counts.backward_flops == 163_840  # the fused kernel recomputes the scores
    assert q.grad is None


def test_a02_attention_doubles_length_quadruples_flops() -> None:
    def flops(length: int) -> int:
        q = torch.randn(2, 4, length, 8)
        return count_operations(F.scaled_dot_product_attention, (q, q, q)).forward_flops

    assert flops(32) == 4 * flops(16)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a02_multi_head_attention(need_weights: bool) -> None:
    x = torch.randn(2, 16, 32)
    mha = nn.MultiheadAttention(32, 4, batch_first=True)
    p = of(mha, tp.ModelInputs((x, x, x), {"need_weights": need_weights}))
    assert (p.params, p.forward_flops, p.layers, p.depth) == (4_224, 327_680, 1, 1)
    # need_weights=False takes the fused kernel, whose backward pass costs 5 products of 32,768 FLOPs instead of 4;
    # x needs no gradient, so the input projection has one product in the backward pass.
    projections = 196_608 + 2 * 65_536
    assert p.backward_flops == projections + (131_072 if need_weights else 163_840)


def test_a02_encoder_layer_in_train_and_in_eval_mode() -> None:
    x = torch.randn(2, 16, 32)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    p = of(layer, x)
    assert (p.params, p.forward_flops) == (8_544, 589_824)
    assert p.backward_flops == 983_040 + 32_768  # math path, plus the recomputed scores of the fused kernel
    assert any("recomputes the scores" in note for note in p.notes)
    layer.eval()
    assert of(layer, x).forward_flops == 589_824
    with torch.no_grad():
        counts = count_operations(layer, (x,))
    assert [group.op for group in counts.op_groups] == ["aten._transformer_encoder_layer_fwd"]
    assert counts.forward_flops == 589_824


def test_a02_multi_head_attention_in_eval_mode_takes_the_native_path() -> None:
    x, mha = torch.randn(2, 16, 32), nn.MultiheadAttention(32, 4, batch_first=True).eval()
    with torch.no_grad():
        counts = count_operations(mha, (x, x, x))
    assert [group.op for group in counts.op_groups] == ["aten._native_multi_head_attention"]
    assert counts.forward_flops == 327_680


@pytest.mark.parametrize(
    ("kind", "gates", "params", "forward"),
    [(nn.LSTM, 4, 9_728, 552_960), (nn.GRU, 3, 7_296, 414_720), (nn.RNN, 1, 2_432, 138_240)],
)
def test_a03_recurrent_layers(kind: Any, gates: int, params: int, forward: int) -> None:
    layer = kind(8, 16, num_layers=2, bidirectional=True, batch_first=True)
    p = of(layer, torch.randn(3, 10, 8))
    assert (p.params, p.forward_flops, p.has_rnn) == (params, forward, True)
    assert of(layer, torch.randn(3, 20, 8)).forward_flops == 2 * forward
    if kind is nn.LSTM:
        assert p.backward_flops == 2 * forward  # the fused kernel computes every gradient
    else:
        # Not computed: the gradient by x (layer 0, both directions) and by the initial state (4 layer directions).
        skipped = 2 * 3 * 10 * gates * 16 * 8 * 2 + 2 * 3 * gates * 16 * 16 * 4
        assert p.backward_flops == 2 * forward - skipped


class Other(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.function(x).abs() * self.scale


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (torch.fft.rfft2, "aten._fft_r2c"),
        (lambda x: torch.cdist(x[0], x[1]), "aten._euclidean_dist"),
        (lambda x: torch.mv(x[0], x[1, 0]), "aten.mv"),
        (lambda x: torch.dot(x[0, 0], x[1, 0]), "aten.dot"),
        (lambda x: torch.linalg.inv(x), "aten.linalg_inv_ex"),
    ],
)
def test_a03_operators_without_a_formula_are_reported(function: Any, op: str) -> None:
    p = of(Other(function), torch.randn(2, 30, 30))
    assert p.uncounted_ops[op] == 1
    assert p.forward_flops == 0
    assert p.features["uncounted_calls"] == sum(p.uncounted_ops.values()) > 0
    assert any(op in note and "lower bound" in note for note in p.notes)


def test_a03_bilinear_is_reported() -> None:
    p = of(nn.Bilinear(4, 5, 6), (torch.randn(3, 4), torch.randn(3, 5)))
    assert p.uncounted_ops == {"aten._trilinear": 2}


CONVOLUTIONS = {
    "dw": (nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), (2, 8, 10, 10), 72, 28_800),
    "grp2": (nn.Conv2d(8, 16, 3, padding=1, groups=2), (2, 8, 10, 10), 592, 230_400),
    "plain": (nn.Conv2d(8, 16, 3, padding=1), (2, 8, 10, 10), 1_168, 460_800),
    "convT": (nn.ConvTranspose2d(3, 1, 2, stride=2), (1, 3, 2, 2), 13, 96),
    "convTg": (
        nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=4),
        (2, 4, 8, 8),
        40,
        9_216,
    ),
    "conv3d": (nn.Conv3d(2, 4, 3, padding=1), (1, 2, 4, 5, 6), 220, 51_840),
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 11), 78, 1_440),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a04_convolution(name: str) -> None:
    layer, shape, params, forward = CONVOLUTIONS[name]
    p = of(layer, torch.randn(shape, requires_grad=True))
    assert (p.params, p.forward_flops, p.backward_flops) == (params, forward, 2 * forward)
    assert of(layer, torch.randn(shape)).backward_flops == forward
    expected = "depthwise_conv" if name in ("dw", "convTg") else "conv"
    assert {group.op_class for group in p.op_groups if group.flops} == {expected}
    assert p.has_conv


def test_a04_sizes_that_decide_the_speed_of_a_convolution() -> None:
    p = of(nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2), torch.randn(2, 8, 10, 10))
    (group,) = [group for group in p.op_groups if group.op == "aten.convolution"]
    assert group.shape == {
        "n": 2,
        "cin": 8,
        "cout": 16,
        "groups": 2,
        "kernel": 9,
        "stride": 4,
        "in_spatial": 100,
        "out_spatial": 25,
        "dimensions": 2,
        "transposed": 0,
    }


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    extra: object = None


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 3)

    def forward(self, batch, *, scale=1.0, meta=None):
        assert meta == [{"id": "a"}]
        z = self.l(batch["x"]["f"].float()) * scale
        extra = {"d": torch.distributions.Categorical(logits=z), "n": None, "s": "ok"}
        return Output(F.cross_entropy(z, batch["y"][0]), z, extra)


def test_a05_structured_inputs_and_outputs() -> None:
    checked = torch.distributions.Distribution._validate_args  # the compiler, once imported, sets it
    args = ({"x": {"f": torch.randn(4, 8)}, "y": (torch.randint(0, 3, (4,)),)},)
    inputs = tp.ModelInputs(args, {"scale": 2.0, "meta": [{"id": "a"}]})
    p = of(Structured(), inputs, loss=None)
    assert (p.params, p.param_bytes, p.forward_flops, p.backward_flops) == (27, 108, 192, 192)
    assert p.batch_size == 4
    assert not p.data_dependent
    assert torch.distributions.Distribution._validate_args is checked


def test_a05_a_loss_that_cannot_be_inferred_is_asked_for() -> None:
    with pytest.raises(LossRequiredError, match="give loss"):
        of(nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), loss=None)


def test_a06_lazy_model_is_counted_and_stays_lazy() -> None:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.Flatten(), nn.LazyLinear(10))
    p = of(model, torch.randn(2, 3, 8, 8), loss=None)
    assert (p.params, p.forward_flops, p.layers) == (3_114, 42_624, 2)
    assert isinstance(model[0], nn.LazyConv2d)
    assert len(model[2]._forward_pre_hooks) == 1
    with pytest.raises(ValueError, match="uninitialized"):
        sum(parameter.numel() for parameter in model.parameters())


def test_a06_lazy_model_without_a_sample() -> None:
    with pytest.raises(ModelError, match="lazy, give a sample input"):
        profile(tp.Workload(nn.Sequential(nn.LazyLinear(3))))


@pytest.mark.parametrize(
    ("frozen", "trainable", "backward"), [((), 212, 16_384), ((0,), 68, 4_096), ((2,), 144, 12_288)]
)
def test_a09_frozen_layers(frozen: tuple[int, ...], trainable: int, backward: int) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for index in frozen:
        model[index].requires_grad_(False)
    p = of(model, torch.randn(32, 8), optimizer="adam")
    assert (p.params, p.trainable_params, p.forward_flops, p.backward_flops) == (212, trainable, 12_288, backward)
    assert p.memory.optimizer_bytes == 8 * trainable
    assert p.memory.gradients_bytes == 4 * trainable


def test_a09_nothing_to_train() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).requires_grad_(False)
    with pytest.raises(NothingToTrainError, match="nothing to train"):
        of(model, torch.randn(32, 8))


class Checkpointed(nn.Module):
    def __init__(self, active: bool) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.o = nn.Linear(16, 2)
        self.active = active

    def forward(self, x):
        return self.o(checkpoint(self.a, x, use_reentrant=False) if self.active else self.a(x))


@pytest.mark.parametrize(("active", "backward"), [(False, 16_640), (True, 21_760)])
def test_a09_checkpointing_recomputes_in_the_backward_pass(active: bool, backward: int) -> None:
    p = of(Checkpointed(active), torch.randn(10, 16))
    assert (p.forward_flops, p.backward_flops, p.depth) == (10_880, backward, 3)


def test_a10_model_larger_than_memory() -> None:
    with torch.device("meta"):
        big = nn.Sequential(*[nn.Linear(65_536, 65_536) for _ in range(8)])
        x = torch.randn(4, 65_536)
    p = of(big, x, optimizer="adam", loss=None)
    assert p.params == 34_360_262_656
    assert p.param_bytes == 137_441_050_624
    assert p.forward_flops == 274_877_906_944
    assert p.forward_flops + p.backward_flops == 790_273_982_464
    memory = p.memory
    assert memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes == 549_764_202_496


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(8, 8)

    def forward(self, x):
        n = 0
        while x.abs().max() > 1e-3 and n < 6:
            x = self.l(x) * 0.1
            n += 1
        return x


def test_a10_control_flow_that_reads_values() -> None:
    torch.manual_seed(0)
    model = Dynamic()
    p = of(model, torch.randn(4, 8))
    assert p.data_dependent
    assert p.forward_flops_range is not None
    assert p.forward_flops_range[0] == 0
    assert p.forward_flops_range[1] == 6 * 2 * 4 * 8 * 8 == 3_072
    small = of(model, torch.randn(4, 8) * 1e-6)
    assert (small.forward_flops, small.backward_flops) == (0, 0)
    assert small.forward_flops_range == (0, 3_072)
    assert any("depends on values" in note for note in small.notes)


def test_a10_scaled_inputs_that_never_end_are_stopped() -> None:
    class Endless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(2, 2)

        def forward(self, x):
            y = self.l(x)
            while x.abs().max() > 1e3:
                x = x * 1.01
            return y

    p = of(Endless(), torch.ones(3, 2))
    assert p.data_dependent
    assert p.forward_flops_range == (24, 24)


def test_c05_embedding_bag_reads_the_rows_that_are_asked_for() -> None:
    p = of(nn.EmbeddingBag(1000, 16), torch.randint(0, 1000, (4, 7)))
    assert (p.params, p.param_bytes, p.forward_flops) == (16_000, 64_000, 0)
    (group,) = [group for group in p.op_groups if group.op == "aten._embedding_bag"]
    assert group.shape == {"rows": 28, "width": 16, "vocabulary": 1000}
    assert group.shape["rows"] * group.shape["width"] * 4 == 1_792
    assert group.bytes_read == 1_792 + 28 * 8 + 4 * 8  # rows, indices, offsets
    assert p.uncounted_ops == {}


def test_e02_a_dense_optimizer_touches_every_row_of_an_embedding() -> None:
    model = nn.Sequential(nn.EmbeddingBag(100_000, 64), nn.Linear(64, 2))
    p = of(model, torch.randint(0, 100_000, (64, 20)), optimizer="adam", loss=None)
    assert (p.params, p.forward_flops) == (6_400_130, 16_384)
    assert p.memory.optimizer_bytes == 8 * 6_400_130
    assert p.features["bytes.optimizer"] > 12 * 4 * 6_400_130


@pytest.mark.parametrize(("groups", "forward"), [(1, 603_979_776), (8, 75_497_472), (64, 9_437_184)])
def test_e02_grouped_convolution(groups: int, forward: int) -> None:
    p = of(nn.Conv2d(64, 64, 3, padding=1, groups=groups), torch.randn(8, 64, 32, 32))
    assert p.forward_flops == forward


def test_complex_products_are_four_real_ones() -> None:
    a, b = torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 5, dtype=torch.complex64)
    assert count_operations(torch.mm, (a, b)).forward_flops == 8 * 3 * 4 * 5


def test_every_form_of_a_matrix_product() -> None:
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    batched = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    for function, args, flops in (
        (torch.mm, (a, b), 120),
        (torch.addmm, (c, a, b), 120),
        (torch.bmm, batched, 240),
        (torch.baddbmm, (torch.randn(2, 3, 5), *batched), 240),
        (torch.addbmm, (c, *batched), 240),
        (lambda x, y: torch.einsum("bij,bjk->bik", x, y), batched, 240),
        (lambda x, y: torch.einsum("bij,jk->bik", x, y), (batched[0], b), 240),
        (F.linear, (a, torch.randn(5, 4)), 120),
        (torch.matmul, batched, 240),
        # a (b c) is cheaper than (a b) c
        (torch.linalg.multi_dot, ([a, b, torch.randn(5, 2)],), 2 * 4 * 5 * 2 + 2 * 3 * 4 * 2),
    ):
        counts = count_operations(function, args)
        assert counts.uncounted_ops == {}
        assert counts.forward_flops == flops


def test_inference_mode_splits_composite_operators() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 5)).eval()
    with torch.inference_mode():
        counts = count_operations(model, (torch.randn(2, 3, 8, 8),))
    assert counts.forward_flops == 2 * 2 * 4 * 36 * 27 + 2 * 2 * 144 * 5
