"""Kinds of models that people bring: wrapped, parametrised, quantised, sparse, complex, huge, scripted."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, rnn

import trainpilot as tp
from trainpilot.errors import ModelError, NothingToTrainError
from trainpilot.profiling import count_operations, profile

from .test_flops import of, summed


def test_data_parallel_wrapper_counts_as_its_module() -> None:
    inner = nn.Linear(8, 4)
    wrapped = of(nn.DataParallel(inner), torch.randn(2, 8))
    assert (wrapped.params, wrapped.forward_flops, wrapped.layers) == (36, 128, 1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, as it is imported
def test_compiled_wrapper_counts_as_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    # The compiler sets this for good when it is imported; put it back for other tests.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    assert of(torch.compile(nn.Linear(8, 4)), torch.randn(2, 8)).forward_flops == 128
    nested = nn.Sequential(torch.compile(nn.Linear(8, 4)), nn.Linear(4, 2))
    assert of(nested, torch.randn(2, 8)).forward_flops == 128 + 32


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrised_layer_is_one_layer(wrap: Any) -> None:
    model = wrap(nn.Linear(8, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    p = of(model, torch.randn(2, 8))
    assert (p.layers, p.depth) == (1, 1)
    assert sum(g.flops for g in p.op_groups if g.op == "aten.addmm") == 128
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_hook_based_weight_norm() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.utils.weight_norm(nn.Linear(8, 4))
    model(torch.randn(2, 8))  # leaves a non-leaf tensor as an attribute, which deepcopy would refuse
    assert of(model, torch.randn(2, 8)).forward_flops == 128


def test_low_rank_adapter() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(64, 64).requires_grad_(False)
            self.down = nn.Linear(64, 4, bias=False)
            self.up = nn.Linear(4, 64, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    p = of(Adapted(), torch.randn(2, 64), optimizer="adam")
    adapter = 2 * 2 * 64 * 4
    assert p.trainable_params == 512
    assert p.forward_flops == 2 * 2 * 64 * 64 + 2 * adapter
    # The base needs no gradient at all; down needs one by its weight, up one by each operand.
    assert p.backward_flops == 3 * adapter
    assert p.memory.optimizer_bytes == 8 * 512


def test_custom_autograd_function() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight.t(), x.t() @ grad

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, x):
            return Twice.apply(x, self.weight)

    p = of(Model(), torch.randn(2, 8))
    assert (p.forward_flops, p.backward_flops) == (128, 256)  # it computes both gradients, needed or not


def test_quantised_model_is_refused_for_training_but_can_be_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), {nn.Linear})
        with pytest.raises(ModelError, match=r"0 \(Linear\) is quantised.*no gradients"):
            of(model, torch.randn(2, 8))
        with torch.no_grad():
            counts = count_operations(model, (torch.randn(2, 8),))
    assert counts.forward_flops == 2 * 2 * 8 * 4 + 2 * 2 * 4 * 2
    assert counts.uncounted_ops == {}


def test_sparse_gradients() -> None:
    model = nn.Sequential(nn.EmbeddingBag(1000, 16, sparse=True), nn.Linear(16, 2))
    p = of(model, torch.randint(0, 1000, (4, 7)), optimizer="sgd")
    assert p.forward_flops == 2 * 4 * 16 * 2
    with pytest.raises(ModelError, match="optimizer raised RuntimeError: Adam does not support sparse gradients"):
        of(model, torch.randint(0, 1000, (4, 7)), optimizer="adam")


def test_packed_sequences_run_on_real_tensors() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 16, batch_first=True)

        def forward(self, x, lengths):
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.lstm(packed)[1][0]

    p = of(Packed(), (torch.randn(3, 10, 8), torch.tensor([10, 6, 2])))
    assert not p.data_dependent
    assert p.forward_flops == 2 * (10 + 6 + 2) * 4 * 16 * (8 + 16)


def test_operator_without_a_shape_rule_runs_on_real_tensors() -> None:
    library = torch.library.Library("trainpilot_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x):
            return self.l(torch.ops.trainpilot_test.double(x))

    p = of(Model(), torch.randn(2, 4))
    assert not p.data_dependent
    assert p.uncounted_ops == {"trainpilot_test.double": 1}
    assert p.forward_flops == 64
    assert any("no shape-only form" in note for note in p.notes)


def test_draws_of_a_model_that_runs_on_real_tensors() -> None:
    library = torch.library.Library("trainpilot_test_drawing", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x):
            x = self.l(torch.ops.trainpilot_test_drawing.double(x))
            return self.l(x) if random.random() > 0.5 else x

    random.seed(1)  # the draws of every run lie on both sides of a half
    p = of(Model(), torch.randn(2, 4))
    assert p.data_dependent
    assert p.forward_flops_range == (64, 128)
    assert p.forward_flops in (64, 128)


def test_scripted_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.jit.script(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    p = of(model, torch.randn(2, 8))
    assert (p.params, p.forward_flops, p.data_dependent) == (36, 128, False)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_value_dependent_model_on_the_meta_device_cannot_be_profiled() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x):
            return self.l(x) if x.sum() > 0 else x

    with torch.device("meta"):
        model, x = Reading(), torch.randn(2, 4)
    with pytest.raises(ModelError, match="needs values, but the model or its inputs are on the meta device"):
        of(model, x)


def test_large_builder_is_built_without_memory() -> None:
    devices = []

    def build() -> nn.Module:
        model = nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(8)])
        devices.append(model[0].weight.device.type)
        return model

    p = profile(tp.Workload(build, lambda n: torch.randn(n, 4096), batch_size=2))
    assert p.params == 8 * (4096 * 4096 + 4096)
    assert devices == ["meta"]  # the first attempt was stopped before it got so far


def test_small_builder_is_built_as_it_is() -> None:
    def build() -> nn.Module:
        width = int(torch.linspace(2, 8, 4)[-1].item())  # reads a value, as constructors of real models do
        return nn.Linear(width, 4)

    assert profile(tp.Workload(build, lambda n: torch.randn(n, 8), batch_size=2)).forward_flops == 128


def test_builder_of_a_large_model_that_reads_values() -> None:
    def build() -> nn.Module:
        layers = [nn.Linear(9000, 9000) for _ in range(1)]
        return nn.Sequential(*layers, nn.Linear(9000, int(torch.ones(1).item())))

    p = profile(tp.Workload(build, lambda n: torch.randn(n, 9000), batch_size=2))
    assert p.params == 9000 * 9000 + 9000 + 9001


def test_double_precision_and_mixed_precision() -> None:
    model, x = nn.Linear(8, 4), torch.randn(2, 8)
    assert of(model, x).dtype == "float32"
    half = of(model, x, dtype="bfloat16")
    assert half.dtype == "bfloat16"
    assert half.forward_flops == 128
    assert half.features["calls.copy"] > of(model, x).features["calls.copy"]  # the casts
    assert of(nn.Linear(8, 4).double(), x.double()).dtype == "float64"


def test_model_without_parameters_is_nothing_to_train() -> None:
    with pytest.raises(NothingToTrainError):
        of(nn.ReLU(), torch.randn(2, 4))


def test_loss_that_depends_on_nothing() -> None:
    with pytest.raises(ModelError, match="does not depend on any trainable parameter"):
        of(nn.Linear(4, 4), torch.randn(2, 4), loss=lambda outputs, targets: outputs.detach().sum())


def test_tied_view_of_one_storage_stays_tied() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.randn(20)
            self.a = nn.Parameter(flat[:8].view(2, 4))
            self.b = nn.Parameter(flat[8:16].view(4, 2))

        def forward(self, x):
            return x @ self.b @ self.a

    p = of(Views(), torch.randn(3, 4))
    assert (p.params, p.forward_flops) == (16, 2 * 3 * 4 * 2 * 2)


def test_parameters_that_share_a_storage_count_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            self.b.weight = nn.Parameter(self.a.weight.data)

        def forward(self, x):
            return self.b(self.a(x))

    p = of(Shared(), torch.randn(3, 4))
    assert (p.params, p.param_bytes, p.layers) == (16, 64, 2)


def test_lazy_model_inside_a_wrapper_with_batch_norm() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    p = of(model, torch.randn(2, 3, 6, 6), loss=None)
    assert p.params == (3 * 9 * 4 + 4) + 8 + (64 * 2 + 2)
    assert isinstance(model[1], nn.LazyBatchNorm2d)


def test_example_inputs_of_another_batch_size_are_refused() -> None:
    with pytest.raises(ModelError, match=r"example_inputs\(16\) gave \(2, 8\), which holds no batch of 16"):
        of(nn.Linear(8, 4), lambda _: torch.randn(2, 8), batch_size=16)
    assert of(nn.Linear(8, 4), torch.randn(2, 8)).notes == ()


def test_mixture_of_experts_routed_by_value() -> None:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            result = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                rows, slots = torch.where(chosen == index)
                result.index_add_(0, rows, expert(x[rows]) * weights[rows, slots, None])
            return result

    p = of(Mixture(), torch.randn(10, 8))
    assert p.data_dependent
    assert p.forward_flops == 2 * 10 * 8 * 4 + 2 * 2 * 10 * 8 * 8  # each row meets two experts
    assert p.uncounted_ops == {}


def test_spectral_layer_counts_complex_products_and_reports_transforms() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, 5, dtype=torch.cfloat))
            self.local = nn.Conv1d(4, 4, 1)

        def forward(self, x):
            spectrum = torch.fft.rfft(x)
            kept = torch.einsum("bix,iox->box", spectrum[..., :5], self.weight)
            return torch.fft.irfft(kept, n=x.shape[-1]) + self.local(x)

    p = of(Spectral(), torch.randn(2, 4, 32))
    assert p.forward_flops == 8 * 2 * 4 * 4 * 5 + 2 * 2 * 4 * 32 * 4
    assert set(p.uncounted_ops) == {"aten._fft_r2c", "aten._fft_c2r"}


def test_cells_unrolled_by_hand() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LSTMCell(4, 8)
            self.second = nn.GRUCell(8, 8)

        def forward(self, x):
            h, c, g = (torch.zeros(x.shape[0], 8) for _ in range(3))
            for t in range(x.shape[1]):
                h, c = self.first(x[:, t], (h, c))
                g = self.second(h, g)
            return g

    p = of(Cells(), torch.randn(3, 5, 4))
    by_x, by_h, by_g = 2 * 3 * 32 * 4, 2 * 3 * 32 * 8, 2 * 3 * 24 * 8
    assert p.forward_flops == 5 * (by_x + by_h + 2 * by_g)
    # x and the initial states need no gradient.
    assert p.backward_flops == 5 * by_x + 9 * by_h + 10 * by_g + 9 * by_g
    assert (p.has_rnn, p.depth) == (True, 10)


def test_gradient_penalty_differentiates_twice() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x):
            x = x.clone().requires_grad_()
            y = self.l(x)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return y.mean() + (gradient.norm(dim=1) - 1).pow(2).mean()

    p = of(Penalised(), torch.randn(3, 8), loss=None)
    wide, narrow = 2 * 3 * 8 * 8, 2 * 3 * 8
    assert p.forward_flops == 2 * (wide + narrow)


def test_optimizer_that_needs_a_closure_is_explained() -> None:
    with pytest.raises(ModelError, match="an optimizer whose step needs a closure"):
        of(nn.Linear(4, 4), torch.randn(2, 4), optimizer=torch.optim.LBFGS)


def test_error_of_the_model_is_one_line_with_its_name() -> None:
    with pytest.raises(ModelError, match=r"^Linear: forward raised RuntimeError: mat1 and mat2 shapes"):
        of(nn.Linear(8, 8), torch.randn(2, 9))


@pytest.mark.parametrize("batch_size", [10**15, 10**20])
def test_batch_that_no_memory_holds_is_refused_in_one_line(batch_size: int) -> None:
    with pytest.raises(ModelError, match=f"^small_cnn: a batch of {batch_size} cannot be made: .") as refused:
        profile(tp.Workload("small_cnn", batch_size=batch_size))
    assert "\n" not in str(refused.value)


class Propagating(nn.Module):
    """Graph layer: a sparse adjacency matrix of 3 x 4 spreads what a layer makes of the nodes."""

    def __init__(self, multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.multiply, self.l = multiply, nn.Linear(6, 5, bias=False)

    def forward(self, adjacency: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        return self.multiply(adjacency, self.l(nodes))


DENSE = torch.tensor([[1.0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 4, 5]])


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support:UserWarning")
@pytest.mark.parametrize("multiply", [torch.sparse.mm, torch.matmul])
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_operand_counts_its_stored_elements(multiply: Callable[..., torch.Tensor], layout: str) -> None:
    adjacency = getattr(DENSE, f"to_sparse_{layout}" if layout != "coo" else "to_sparse")()
    p = profile(
        tp.Workload(Propagating(multiply), example_inputs=(adjacency, torch.randn(4, 6)), batch_size=3, loss=summed)
    )
    layer, spread = 2 * 4 * 6 * 5, 2 * 5 * 5  # five elements are stored
    assert p.forward_flops == layer + spread
    assert p.backward_flops == layer + spread  # the gradient of the layer's weight, and that of the dense operand
    assert p.uncounted_ops == {}
    assert not p.data_dependent


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")
def test_sparse_matrix_from_indices_and_from_values() -> None:
    class Built(nn.Module):
        def __init__(self, by_value: bool) -> None:
            super().__init__()
            self.l, self.by_value = nn.Linear(6, 5, bias=False), by_value

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            if self.by_value:
                return (x > 0).float().to_sparse() @ self.l.weight.t()
            adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (4, 4))
            return torch.sparse.mm(adjacency, self.l(x))

    x, edges = torch.randn(4, 6), torch.tensor([[0, 1, 2], [1, 2, 3]])
    indexed = of(Built(False), (x, edges))
    assert (indexed.forward_flops, indexed.data_dependent) == (2 * 4 * 6 * 5 + 2 * 3 * 5, False)
    valued = of(Built(True), (x, edges))
    assert (valued.forward_flops, valued.data_dependent) == (2 * int((x > 0).sum()) * 5, True)


def test_product_of_two_sparse_matrices_is_uncounted() -> None:
    class Squared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(x, x).to_dense() * self.scale

    p = profile(tp.Workload(Squared(), example_inputs=torch.eye(3).to_sparse(), loss=summed))
    assert p.forward_flops == 0
    assert list(p.uncounted_ops) == ["aten._sparse_sparse_matmul"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_input_is_refused_in_one_line(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
    for inputs in (nested, lambda _: nested):
        with pytest.raises(ModelError, match=r"nested tensor.*give a padded tensor") as caught:
            profile(tp.Workload(nn.Linear(4, 4), example_inputs=inputs, batch_size=2, loss=summed))
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler, as it is imported
def test_control_flow_operator_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # the compiler sets it for good

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: self.l(x), lambda x: x.clone(), (x,))

    with pytest.raises(
        ModelError, match=r"operator cond, whose body a trace does not see: write it as an if"
    ) as caught:
        of(Branching(), torch.randn(3, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")
@pytest.mark.filterwarnings("ignore:_aminmax is deprecated:UserWarning")
def test_quantisation_aware_model_leaves_nothing_uncounted() -> None:
    quantisation = torch.ao.quantization
    model = nn.Sequential(quantisation.QuantStub(), nn.Linear(8, 4), quantisation.DeQuantStub()).train()
    model.qconfig = quantisation.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    p = of(quantisation.prepare_qat(model), torch.randn(3, 8))
    assert (p.forward_flops, p.uncounted_ops) == (2 * 3 * 8 * 4, {})


class Experts(nn.Module):
    """Each token goes to the two experts of four that score highest."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            if rows.numel():
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
        return out


def test_experts_chosen_by_values_count_for_the_tokens_that_they_get() -> None:
    p = of(Experts(), torch.randn(10, 8))
    assert p.forward_flops == 2 * 10 * 8 * 4 + 20 * (2 * 8 * 16 + 2 * 16 * 8)
    assert p.data_dependent


class Grouped(nn.Module):
    """Four query heads share two heads of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (heads, 4)).transpose(1, 2)
            for layer, heads in ((self.query, 4), (self.key, 2), (self.value, 2))
        )
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def test_shared_heads_of_keys_cost_as_many_scores_as_query_heads() -> None:
    p = of(Grouped(), torch.randn(2, 6, 16))
    attention = 2 * 2 * 2 * 4 * 6 * 6 * 4
    projections = 2 * 12 * 16 * (16 + 8 + 8)
    assert p.forward_flops == projections + attention
    assert p.backward_flops == projections + attention // 2 * 5


def test_checkpoint_recomputes_until_it_has_what_it_needs() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)

    p = of(Checkpointed(), torch.randn(4, 8, requires_grad=True))
    half = 2 * 4 * 8 * 16
    # Two gradients of each layer; the result of the last one is not needed again.
    assert (p.forward_flops, p.backward_flops) == (2 * half, 4 * half + half)


def test_sets_of_weights_by_vmap() -> None:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(5, 8, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(lambda weight: x @ weight)(self.weights)

    p = of(Ensemble(), torch.randn(3, 8))
    assert p.forward_flops == p.backward_flops == 5 * 2 * 3 * 8 * 4
