"""Random generators that a model holds of its own: a branch on what they draw is seen, and they stay where they are."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.profiling import profile

from .test_flops import summed

# Linear(4, 4) without bias on 3 samples: 2 * 3 * 4 * 4 FLOPs.
ONE = 96
PYTHON = random.Random(1)
NUMPY = np.random.default_rng(1)
LEGACY = np.random.RandomState(1)
TORCH = torch.Generator().manual_seed(1)


class Skipping(nn.Module):
    """Skips its second layer half of the time."""

    def __init__(self, draw: Callable[[Skipping], float], **held: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.draw = draw
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.second(x) if self.draw(self) > 0.5 else x


def state(generator: Any) -> str:
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    if isinstance(generator, torch.Generator):
        return repr(generator.get_state().tolist())
    bits = generator if isinstance(generator, np.random.BitGenerator) else generator._bit_generator
    return repr(bits.state)


def closure(generator: Any) -> Callable[[Any], float]:
    return lambda _: generator.random()


HELD: dict[str, Any] = {
    "Random": (random.Random(1), lambda m: m.held.random()),
    "Generator": (np.random.default_rng(1), lambda m: m.held.random()),
    "MT19937": (np.random.Generator(np.random.MT19937(1)), lambda m: m.held.random()),
    "RandomState": (np.random.RandomState(1), lambda m: m.held.rand()),
    "bit generator": (np.random.PCG64(1), lambda m: m.held.random_raw() / 2**64),
    "in a list": ([random.Random(1)], lambda m: m.held[0].random()),
    "method": (random.Random(1).random, lambda m: m.held()),
}
GLOBAL: dict[str, Any] = {
    "Random": (PYTHON, lambda _: PYTHON.random()),
    "Generator": (NUMPY, lambda _: NUMPY.random()),
    "RandomState": (LEGACY, lambda _: LEGACY.rand()),
    "closure of Generator": (NUMPY, closure(NUMPY)),
    "closure of Random": (PYTHON, closure(PYTHON)),
}


def check(module: nn.Module, generator: Any) -> None:
    before = state(generator)
    p = profile(tp.Workload(module, example_inputs=torch.randn(3, 4), loss=summed))
    assert state(generator) == before
    assert p.data_dependent
    assert p.forward_flops in (ONE, 2 * ONE)
    # Of the first four draws some are below a half and some above.
    assert p.forward_flops_range == (ONE, 2 * ONE)


@pytest.mark.parametrize("name", HELD)
def test_generator_of_the_model(name: str) -> None:
    held, draw = HELD[name]
    generator = held[0] if isinstance(held, list) else getattr(held, "__self__", held)
    check(Skipping(draw, held=held), generator)


@pytest.mark.parametrize("name", GLOBAL)
def test_generator_among_globals(name: str) -> None:
    generator, draw = GLOBAL[name]
    check(Skipping(draw), generator)


def test_generator_that_is_held_but_not_drawn_from_depends_on_nothing() -> None:
    module = Skipping(lambda _: 0.0, held=random.Random(1), other=np.random.default_rng(1))
    p = profile(tp.Workload(module, example_inputs=torch.randn(3, 4), loss=summed))
    assert not p.data_dependent
    assert p.forward_flops == ONE


def test_generator_of_torch_among_globals_stays_where_it_is() -> None:
    def noisy(_: Any) -> float:
        return float(torch.rand(1, generator=TORCH)) * 0  # reads a value, hence on real tensors

    before = state(TORCH)
    profile(tp.Workload(Skipping(noisy), example_inputs=torch.randn(3, 4), loss=summed))
    assert state(TORCH) == before
