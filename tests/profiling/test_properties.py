"""Invariants that hold for any model."""

from __future__ import annotations

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trainpilot as tp
from trainpilot.profiling import count_operations, profile

from .test_flops import summed

sizes = st.integers(1, 9)
FEW = settings(max_examples=10, deadline=None)


def layer(width: int, kind: int) -> nn.Module:
    return [
        lambda: nn.Linear(width, width),
        lambda: nn.LayerNorm(width),
        lambda: nn.GELU(),
        lambda: nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)),
        lambda: nn.Unflatten(1, (1, width)),
    ][kind]()


@st.composite
def models(draw: st.DrawFn) -> tuple[nn.Sequential, int]:
    width = draw(st.integers(1, 8))
    kinds = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    return nn.Sequential(nn.Linear(width, width), *(layer(width, kind) for kind in kinds)), width


def traced(model: nn.Module, *shape: int) -> tp.WorkloadProfile:
    return profile(tp.Workload(model, example_inputs=torch.randn(*shape), loss=summed))


class Renamed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.some_other_name = inner

    def forward(self, anything):
        return self.some_other_name(anything)


@FEW
@given(models(), st.integers(1, 5))
def test_renaming_and_wrapping_change_nothing(model: tuple[nn.Sequential, int], batch: int) -> None:
    module, width = model
    plain, wrapped = traced(module, batch, width), traced(Renamed(copy.deepcopy(module)), batch, width)
    for name in ("params", "forward_flops", "backward_flops", "layers", "depth", "op_groups", "memory"):
        assert plain[name] == wrapped[name]


@FEW
@given(models(), st.integers(1, 5), st.integers(2, 4))
def test_flops_are_linear_in_the_batch_size(model: tuple[nn.Sequential, int], batch: int, factor: int) -> None:
    module, width = model
    one, more = traced(module, batch, width), traced(module, batch * factor, width)
    assert more.forward_flops == factor * one.forward_flops
    assert more.backward_flops == factor * one.backward_flops
    assert more.params == one.params
    assert more.memory.peak_bytes >= one.memory.peak_bytes


@FEW
@given(models(), models(), st.integers(1, 5))
def test_flops_add_up_over_a_sequence(
    first: tuple[nn.Sequential, int], second: tuple[nn.Sequential, int], batch: int
) -> None:
    (a, wide), (b, narrow) = first, second
    joint = nn.Sequential(a, nn.Linear(wide, narrow), b)
    parts = [
        count_operations(part, (torch.randn(batch, width),)).forward_flops
        for part, width in ((a, wide), (joint[1], wide), (b, narrow))
    ]
    assert traced(joint, batch, wide).forward_flops == sum(parts)


@FEW
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_attention_quadruples_with_twice_the_length(
    batch: int, heads: int, length: int, size: int, causal: bool
) -> None:
    def flops(n: int) -> tuple[int, int]:
        x = torch.randn(batch, heads, n, size, requires_grad=True)
        counts = count_operations(
            nn.functional.scaled_dot_product_attention, (x, x, x), {"is_causal": causal}, backward=True
        )
        return counts.forward_flops, counts.backward_flops

    forward, backward = flops(length)
    assert forward == 4 * batch * heads * length * length * size
    assert flops(2 * length) == (4 * forward, 4 * backward)


@FEW
@given(
    st.integers(1, 3),
    sizes,
    sizes,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(3, 8),
    st.integers(1, 3),
    st.booleans(),
)
def test_convolution_by_formula(
    batch: int, per_group: int, out: int, kernel: int, stride: int, side: int, groups: int, transposed: bool
) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = kind(per_group * groups, out * groups, kernel, stride, groups=groups)
    x = torch.randn(batch, per_group * groups, side, side, requires_grad=True)
    p = profile(tp.Workload(model, example_inputs=x, loss=summed))
    positions = side * side if transposed else ((side - kernel) // stride + 1) ** 2
    forward = 2 * batch * positions * groups * per_group * out * kernel * kernel
    assert (p.forward_flops, p.backward_flops) == (forward, 2 * forward)


@FEW
@given(models())
def test_parameters_are_those_of_unique_storages(model: tuple[nn.Sequential, int]) -> None:
    module, width = model
    tied = nn.Sequential(module, module)  # the same object twice
    p = traced(tied, 2, width)
    unique = {parameter.untyped_storage().data_ptr(): parameter.numel() for parameter in tied.parameters()}
    assert p.params == sum(unique.values())
