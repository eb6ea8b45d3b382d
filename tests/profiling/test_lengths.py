"""Packed sequences: lengths that are known are shapes, lengths that are computed are values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import trainpilot as tp
from trainpilot.profiling import count_operations, profile, profiler
from trainpilot.profiling.cache import ProfileCache

from .test_flops import summed

BATCH, LONGEST, WIDTH, HIDDEN = 3, 5, 4, 8
LENGTHS = [5, 2, 3]
TOKENS = sum(LENGTHS)
# LSTM: four gates, input and hidden state; linear layer on the padded output.
FORWARD = 2 * TOKENS * 4 * HIDDEN * (WIDTH + HIDDEN) + 2 * BATCH * LONGEST * HIDDEN * 2
# Gradients of the input weights, of hidden weights and states but for the first step, and both of the linear layer.
BACKWARD = (
    2 * TOKENS * 4 * HIDDEN * (WIDTH + 2 * HIDDEN)
    - 2 * BATCH * 4 * HIDDEN * HIDDEN
    + 2 * (2 * BATCH * LONGEST * HIDDEN * 2)
)


class Packing(nn.Module):
    def __init__(self, lengths: Callable[..., Any]) -> None:
        super().__init__()
        self.lengths = lengths
        self.lstm, self.head = nn.LSTM(WIDTH, HIDDEN, batch_first=True), nn.Linear(HIDDEN, 2)

    def forward(self, x: torch.Tensor, *given: Any) -> torch.Tensor:
        lengths = self.lengths(x, *given)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(padded)


def padded_input() -> torch.Tensor:
    x = torch.randn(BATCH, LONGEST, WIDTH).abs() + 1
    for row, length in zip(x, LENGTHS, strict=True):
        row[length:] = 0
    return x


def of(module: nn.Module, *inputs: Any) -> tp.WorkloadProfile:
    return profile(tp.Workload(module, example_inputs=inputs, loss=summed))


def written_down(x: torch.Tensor) -> list[int]:
    return LENGTHS


def taken(x: torch.Tensor, lengths: Any) -> Any:
    return lengths


def taken_to_cpu(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return lengths.to(torch.int64).cpu()


def from_mask(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :, 0] != 0).sum(1)


def from_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor([sum(value != 0 for value in row) for row in x[:, :, 0].tolist()])


def from_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor((x[:, :, 0].detach().numpy() != 0).sum(1))


def changed_in_place(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return lengths.clamp_(max=(x[:, :, 0] != 0).sum(1).max())


@pytest.mark.parametrize(
    ("lengths", "given"),
    [
        (written_down, ()),
        (taken, (LENGTHS,)),
        (taken, (torch.tensor(LENGTHS),)),
        (taken_to_cpu, (torch.tensor(LENGTHS, dtype=torch.int32),)),
    ],
)
def test_known_lengths_are_no_values(lengths: Callable[..., Any], given: tuple[Any, ...]) -> None:
    p = of(Packing(lengths), padded_input(), *given)
    assert (p.forward_flops, p.backward_flops) == (FORWARD, BACKWARD)
    assert not p.data_dependent
    assert p.forward_flops_range is None


@pytest.mark.parametrize(
    ("lengths", "given"),
    [(from_mask, ()), (from_numbers, ()), (from_numpy, ()), (changed_in_place, (torch.tensor(LENGTHS),))],
)
def test_computed_lengths_are_values(lengths: Callable[..., Any], given: tuple[Any, ...]) -> None:
    p = of(Packing(lengths), padded_input(), *given)
    assert (p.forward_flops, p.backward_flops) == (FORWARD, BACKWARD)
    assert p.data_dependent


class Stopping(Packing):
    """Reads a value after it has packed by known lengths."""

    def __init__(self, read: Callable[[torch.Tensor], Any]) -> None:
        super().__init__(written_down)
        self.read = read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return self.head(out @ self.head.weight) if self.read(out) > 1e9 else out


@pytest.mark.parametrize(
    "read",
    [
        lambda out: out.sum().item(),
        lambda out: out.sum().tolist(),
        lambda out: out.detach().numpy().sum(),
        lambda out: out[out > 0].shape[0],
    ],
)
def test_value_that_is_read_after_packing_counts(read: Callable[[torch.Tensor], Any]) -> None:
    assert of(Stopping(read), padded_input()).data_dependent


def test_other_lengths_of_the_inputs_are_another_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "_cache", ProfileCache())
    module, x, lengths = Packing(taken), padded_input(), torch.tensor(LENGTHS)
    first = of(module, x, lengths)
    assert [note for note in first.notes if "lengths of sequences are taken" in note]
    longer = of(module, x, torch.full((BATCH,), LONGEST)).forward_flops
    assert longer == FORWARD + 2 * (BATCH * LONGEST - TOKENS) * 4 * HIDDEN * (WIDTH + HIDDEN)


class OnPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(WIDTH, HIDDEN, bidirectional=True), nn.GRU(2 * HIDDEN, HIDDEN)

    def forward(self, packed: PackedSequence) -> torch.Tensor:
        return self.gru(self.lstm(packed)[0])[0].data


def test_packed_input_has_as_many_samples_as_sequences() -> None:
    packed = pack_padded_sequence(padded_input(), LENGTHS, batch_first=True, enforce_sorted=False)
    both_directions = 2 * 2 * TOKENS * 4 * HIDDEN * (WIDTH + HIDDEN)
    gru = 2 * TOKENS * 3 * HIDDEN * (2 * HIDDEN + HIDDEN)
    for options in ({}, {"batch_size": BATCH}):
        w = tp.Workload(OnPacked(), example_inputs=packed, loss=summed, **options)
        assert w.batch_size == BATCH
        p = profile(w)
        assert p.forward_flops == both_directions + gru
        assert not p.data_dependent
    w = tp.Workload(OnPacked(), example_inputs=lambda _: packed, loss=summed, batch_size=BATCH)
    assert profile(w).batch_size == BATCH


def test_positions_are_no_values_and_masks_are() -> None:
    x, module = torch.randn(4, 8), nn.Linear(8, 2)
    rows = torch.tensor([0, 2])

    class Custom(torch.autograd.Function):
        """Has no form on fake tensors: it asks for the address of its input."""

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert x.data_ptr()
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    assert not count_operations(lambda x: module(Custom.apply(x))[rows], (x,)).data_dependent
    assert count_operations(lambda x: module(x[x[:, 0] > 0]), (x,)).data_dependent


def ctc(given: bool) -> Callable[..., torch.Tensor]:
    def loss(log_probabilities: torch.Tensor, targets: Any) -> torch.Tensor:
        labels, lengths = targets
        if not given:
            lengths = (labels > 0).sum(1)
        steps = [10, 10] if isinstance(lengths, list) else torch.tensor([10, 10])
        return nn.functional.ctc_loss(log_probabilities, labels, steps, lengths)

    return loss


class Transcriber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.l(x).log_softmax(-1)


@pytest.mark.parametrize(
    ("given", "lengths", "depends"),
    [(True, [3, 2], False), (True, torch.tensor([3, 2]), False), (False, [3, 2], True)],
)
def test_loss_by_lengths_depends_on_values_if_they_are_computed(given: bool, lengths: Any, depends: bool) -> None:
    targets = (torch.tensor([[1, 2, 3], [4, 5, 0]]), lengths)
    p = profile(tp.Workload(Transcriber(), example_inputs=torch.randn(10, 2, 4), targets=targets, loss=ctc(given)))
    assert p.forward_flops == 2 * 10 * 2 * 4 * 6
    assert p.backward_flops == p.forward_flops
    assert p.data_dependent == depends
    assert p.uncounted_ops == {}
