"""The parts of training: batches, samples, the loop, Ctrl-C, and checkpoints."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

import trainpilot as tp
from trainpilot.backends import TrainingSession
from trainpilot.errors import (
    DataError,
    LossRequiredError,
    NonFiniteLossError,
    TrainingError,
    UnsupportedError,
    UsageError,
)
from trainpilot.train_orchestrated.checkpoint import check_writable, save_weights
from trainpilot.train_orchestrated.interrupt import StopRequest
from trainpilot.train_orchestrated.loop import train_epochs
from trainpilot.train_orchestrated.samples import Splits, as_samples, batch_indices, split_samples
from trainpilot.train_orchestrated.seed import check_seed
from trainpilot.train_orchestrated.supervision import check_labels, own_loss
from trainpilot.workload import TrainingPlan, Workload
from trainpilot.zoo.data import TrainingData

# ------------------------------------------------------------------ batches


def batches_of(size: int, batch_size: int, **options: bool) -> list[list[int]]:
    options = {"drop_last": False, "merge_single": False, **options}
    return [index.tolist() for index in batch_indices(size, batch_size, np.random.default_rng(0), **options)]


@pytest.mark.parametrize(
    ("size", "batch_size", "options", "sizes"),
    [
        (1000, 32, {}, [32] * 31 + [8]),
        (1000, 32, {"drop_last": True}, [32] * 31),
        (64, 32, {}, [32, 32]),
        (65, 32, {}, [32, 32, 1]),
        (65, 32, {"merge_single": True}, [32, 33]),
        (66, 32, {"merge_single": True}, [32, 32, 2]),
        (65, 32, {"merge_single": True, "drop_last": True}, [32, 32]),
        (1, 32, {"merge_single": True}, [1]),
        (5, 1, {}, [1] * 5),
        (10, 32, {}, [10]),
    ],
)
def test_batch_sizes(size, batch_size, options, sizes):
    assert [len(batch) for batch in batches_of(size, batch_size, **options)] == sizes


@given(st.integers(1, 200), st.integers(1, 64), st.booleans())
@hypothesis_settings(deadline=None)
def test_every_sample_comes_once(size, batch_size, merge):
    found = batches_of(size, batch_size, merge_single=merge)
    assert sorted(itertools.chain.from_iterable(found)) == list(range(size))
    assert all(len(batch) <= batch_size + merge for batch in found)


def test_order_is_shuffled_and_differs_between_epochs():
    rng = np.random.default_rng(3)
    first, second = (
        np.concatenate(list(batch_indices(100, 10, rng, drop_last=False, merge_single=False))).tolist()
        for _ in range(2)
    )
    assert first != sorted(first)
    assert first != second


# ------------------------------------------------------------------ samples


def test_arrays_become_tensors_of_the_usual_types():
    samples = as_samples({"x": np.zeros((3, 2), np.float64), "ids": np.ones((3, 4), np.uint8)}, np.array([0, 1, 2]))
    assert {name: t.dtype for name, t in samples.inputs.kwargs.items()} == {"x": torch.float32, "ids": torch.int64}
    assert samples.targets.dtype == torch.int64
    taken = samples.take(np.array([2, 0]))
    assert taken.size == 2
    assert taken.targets.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((3, 2)), np.zeros(4), "X has 3 samples but y has shape"),
        ((np.zeros((3, 2)), np.zeros((4, 2))), None, "same length"),
        (np.zeros((0, 2)), np.zeros(0), "at least one sample"),
        (np.array([[1.0, math.nan]]), np.zeros(1), "not finite"),
        (np.zeros((2, 2)), np.array([1.0, math.inf]), "y is not finite"),
        (np.array([["a"], ["b"]]), np.zeros(2), "numbers"),
        (np.array([[object()], [object()]]), np.zeros(2), "numbers"),
        (np.float64(3), np.zeros(1), "one row per sample"),
        ([[1.0], [2.0, 3.0]], np.zeros(2), "X must be one array of numbers"),
    ],
)
def test_arrays_that_cannot_be_used(x, y, words):
    with pytest.raises(DataError, match=words):
        as_samples(x, y)


def test_batches_are_copies_of_the_users_arrays():
    x, y = np.ones((4, 2), np.float32), np.zeros(4, np.int64)
    batch = as_samples(x, y).take(np.array([0, 1, 2, 3]))
    batch.inputs.args[0].zero_()
    batch.targets.fill_(7)
    assert (x == 1).all()
    assert (y == 0).all()


def test_arrays_that_torch_does_not_take_as_they_are():
    frozen = np.arange(8, dtype=np.float32).reshape(4, 2)
    frozen.flags.writeable = False
    reverse = frozen[::-1]
    samples = as_samples((frozen, reverse), None)
    assert torch.equal(samples.inputs.args[0].flip(0), samples.inputs.args[1])


@pytest.mark.parametrize("shape", [(8, 8), (1, 8, 8), (8, 8, 1), (64,)])
def test_images_are_adapted_to_the_zoo_model(shape):
    workload = Workload("small_cnn", settings={"image_size": 8})
    x = np.arange(20 * 64, dtype=np.float64).reshape(20, *shape)
    splits = split_samples(workload, (x, np.arange(20) % 2), seed=0)
    assert tuple(splits.train.inputs.args[0].shape) == (16, 1, 8, 8)
    assert splits.validation.size == 4
    values = torch.cat([splits.train.inputs.args[0], splits.validation.inputs.args[0]])
    assert sorted(values.flatten().tolist()) == list(range(20 * 64))


def test_wrong_shape_names_the_right_one():
    with pytest.raises(DataError, match=r"\(7, 7\).*\(1, 8, 8\)"):
        split_samples(Workload("small_cnn", settings={"image_size": 8}), (np.zeros((20, 7, 7)), np.arange(20) % 2), 0)


def test_labels_outside_the_classes():
    workload = Workload("small_cnn", settings={"image_size": 8, "classes": 3})
    with pytest.raises(DataError, match="number of classes"):
        split_samples(workload, (np.zeros((20, 8, 8)), np.arange(20) % 4), 0)
    data = TrainingData(np.zeros((4, 8, 8), np.float32), np.arange(4), np.zeros((0, 8, 8)), np.zeros(0), 4, "d")
    with pytest.raises(DataError, match="4 classes.*built for 3"):
        split_samples(workload, data, 0)


def test_held_out_samples_are_given_or_taken():
    workload = Workload(nn.Linear(2, 1))
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10.0)
    given = split_samples(workload, (x, y, x[:3], y[:3]), 0)
    assert (given.train.size, given.validation.size) == (10, 3)
    taken = split_samples(workload, (x, y), 0)
    assert (taken.train.size, taken.validation.size) == (8, 2)
    assert sorted(taken.train.targets.tolist() + taken.validation.targets.tolist()) == y.tolist()
    assert split_samples(workload, (x[:2], y[:2]), 0).validation is None
    with pytest.raises(DataError, match=r"\(X, y\)"):
        split_samples(workload, x, 0)


# ------------------------------------------------------------------ the loop, on a session of our own


class Session(TrainingSession):
    """Returns the given losses and keeps what it was fed."""

    def __init__(self, losses: list[Any] | None = None, model: nn.Module | None = None) -> None:
        self.model = model or nn.Linear(2, 2)
        self.losses = losses
        self.fed: list[list[float]] = []
        self.closed = False
        self.after_step: Any = None

    def step(self, inputs=None, targets=None):
        self.fed.append(targets.tolist())
        loss = 1.0 if self.losses is None else self.losses[len(self.fed) - 1]
        if isinstance(loss, Exception):
            raise loss
        if self.after_step is not None:
            self.after_step()
        return torch.tensor(float(loss))

    def forward(self, inputs=None):
        # Says class 1 for all samples.
        return torch.tensor([[0.0, 1.0]]).repeat(len(inputs.args[0]), 1)

    def synchronize(self):
        pass

    def peak_memory_bytes(self):
        return None

    def placement(self):
        return "double"

    def state_dict(self):
        return dict(self.model.state_dict())

    def close(self):
        self.closed = True


def splits_of(size: int, validation: list[int] | None = None) -> Splits:
    train_part = as_samples(np.zeros((size, 2)), np.arange(size))
    held_out = None if validation is None else as_samples(np.zeros((len(validation), 2)), np.array(validation))
    return Splits(train_part, held_out)


def loop(session: Session, splits: Splits, *, progress=None, stop=None, **plan: Any):
    plan = TrainingPlan(dataset_size=splits.train.size, **{"batch_size": 4, **plan})
    return train_epochs(session, splits, plan, name="model", seed=0, stop=stop or StopRequest(), progress=progress)


def test_loop_feeds_every_sample_in_every_epoch():
    session = Session()
    run = loop(session, splits_of(10), epochs=3)
    assert [len(batch) for batch in session.fed] == [4, 4, 2] * 3
    for epoch in range(3):
        assert sorted(itertools.chain.from_iterable(session.fed[3 * epoch : 3 * epoch + 3])) == list(range(10))
    assert (run.status, run.steps, run.planned_steps) == ("ok", 9, 9)
    # Neither the first step nor partial batches are part of the label.
    assert len(run.full_steps_s) == 5
    assert len(run.data_s) == 9


def test_loss_of_an_epoch_is_the_mean_over_samples():
    run = loop(Session([4.0, 2.0, 1.0]), splits_of(10))
    assert run.initial_loss == 4.0
    assert run.last_loss == 1.0
    assert run.epochs[0].loss == pytest.approx((4 * 4.0 + 4 * 2.0 + 2 * 1.0) / 10)


def test_accuracy_counts_right_classes():
    run = loop(Session(), splits_of(4, validation=[1, 1, 0, 1, 0]), epochs=2)
    assert [epoch.accuracy for epoch in run.epochs] == [0.6, 0.6]


@pytest.mark.parametrize(
    ("outputs", "targets", "right"),
    [
        (torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), np.array([[1, 1]]), 0.5),  # (batch, classes, positions)
        (
            torch.tensor([[[0.0, 1.0], [1.0, 0.0], [0.0, 2.0]]]),
            np.array([[1, 0, 0]]),
            2 / 3,
        ),  # (batch, positions, classes)
        (torch.tensor([[1.0]]), np.array([[1.0]]), None),  # a regression
        (torch.tensor([1.0]), np.array([1]), None),  # no classes
    ],
)
def test_accuracy_of_positions_and_of_what_has_no_classes(outputs, targets, right):
    session = Session()
    session.forward = lambda inputs=None: outputs  # type: ignore[method-assign]
    splits = Splits(splits_of(4).train, as_samples(np.zeros((1, 2)), targets))
    assert loop(session, splits).epochs[0].accuracy == (None if right is None else pytest.approx(right))


def test_last_batch_of_one_joins_the_one_before_with_batch_norm():
    plain, normalised = Session(), Session(model=nn.BatchNorm1d(2))
    assert loop(plain, splits_of(9)).steps == 3
    assert loop(normalised, splits_of(9)).steps == 2
    assert [len(batch) for batch in normalised.fed] == [4, 5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_loss_ends_the_run(bad):
    session = Session([1.0, bad, 1.0])
    run = loop(session, splits_of(12))
    assert (run.status, run.steps, len(session.fed)) == ("nonfinite_loss", 2, 2)
    assert isinstance(run.error, NonFiniteLossError)
    assert "step 2 of 3" in str(run.error)


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "oom", TrainingError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom", TrainingError),
        (MemoryError(), "oom", TrainingError),
        (UnsupportedError("no kernel for float16"), "unsupported", UnsupportedError),
        (RuntimeError("mat1 and mat2 shapes\ncannot be multiplied"), "failed", TrainingError),
    ],
)
def test_errors_of_a_step_become_a_status(raised, status, kind):
    run = loop(Session([1.0, raised]), splits_of(8))
    assert (run.status, type(run.error)) == (status, kind)
    assert "step 2" in str(run.error)
    assert "\n" not in str(run.error)
    assert run.error.__cause__ is None  # the exception would keep tensors alive


def test_stop_request_ends_the_run_at_a_step_boundary():
    stop, session = StopRequest(), Session()
    session.after_step = lambda: setattr(stop, "requested", len(session.fed) == 4)
    run = loop(session, splits_of(12), epochs=2, stop=stop)
    assert (run.interrupted, run.status, run.steps, run.planned_steps) == (True, "ok", 4, 6)
    assert run.reason == "interrupted after 4 of 6 steps"
    assert len(run.epochs) == 1


def test_stop_request_in_the_last_step_finds_the_run_complete():
    stop, session = StopRequest(), Session()
    session.after_step = lambda: setattr(stop, "requested", len(session.fed) == 3)
    run = loop(session, splits_of(12), stop=stop)
    assert (run.interrupted, run.steps) == (False, 3)


def test_stop_request_in_the_last_validation_is_told():
    stop, session = StopRequest(), Session()
    answer = session.forward

    def forward(inputs=None):
        stop.requested = True
        return answer(inputs)

    session.forward = forward  # type: ignore[method-assign]
    run = loop(session, splits_of(4, validation=[1] * 9), stop=stop)
    assert (run.interrupted, run.status, run.steps) == (True, "ok", 1)
    assert run.epochs[0].accuracy is None
    assert "in the validation" in run.reason


def test_progress_counts_and_never_goes_below_zero():
    seen: list[tp.train_orchestrated.Progress] = []
    loop(Session(), splits_of(10), epochs=2, progress=seen.append)
    assert [(p.epoch, p.step) for p in seen] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)]
    assert {(p.epochs, p.steps) for p in seen} == {(2, 6)}
    assert all(p.remaining_s >= 0 for p in seen)
    assert seen[-1].remaining_s == 0


# ------------------------------------------------------------------ Ctrl-C


def test_first_ctrl_c_asks_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
    assert signal.getsignal(signal.SIGINT) is before


def test_stop_request_outside_the_main_thread_is_harmless():
    found: list[bool] = []

    def work() -> None:
        with StopRequest() as stop:
            found.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


# ------------------------------------------------------------------ checkpoints


def test_weights_are_written_whole_and_as_weights_only(tmp_path):
    model, path = nn.Linear(3, 2), tmp_path / "weights.pt"
    path.write_bytes(b"older")
    save_weights(path, model.state_dict())
    loaded = torch.load(path, weights_only=True)
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.pt"]


def test_failed_write_keeps_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "weights.pt"
    path.write_bytes(b"older")

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(TrainingError, match="No space left"):
        save_weights(path, {})
    assert path.read_bytes() == b"older"
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.pt"]


def test_unwritable_places_are_refused(tmp_path):
    with pytest.raises(TrainingError, match="folder"):
        check_writable(tmp_path)
    with pytest.raises(TrainingError, match="cannot be written"):
        check_writable(tmp_path / "missing" / "weights.pt")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TrainingError, match="cannot be written"):
        check_writable(file / "weights.pt")
    check_writable(tmp_path / "weights.pt")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# ------------------------------------------------------------------ seeds, labels, and a loss of the model's own


@pytest.mark.parametrize("seed", [-1, 2**63, 10**20, 1.5, "0", None])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(UsageError, match="seed must be a whole number"):
        check_seed(seed)
    assert check_seed(np.int64(3)) == 3


@pytest.mark.parametrize(
    ("outputs", "first", "everything", "words"),
    [
        ((4, 5), [0, 1, 2, 3], [0, 1, 2, 5], "from 0 to 4, since the model has 5 classes; one is 5"),
        ((4, 5), [0, 1, 2, 3], [0, -1], "one is -1"),
        ((4, 5), [-100] * 4, [-100] * 4, "every label is -100"),
        ((1, 3, 5), [[0, 1, 4]], [[9, 0, 0]], "5 classes; one is 9"),  # (batch, positions, classes)
        ((1, 5, 3), [[0, 1, 4]], [[9, 0, 0]], "5 classes; one is 9"),  # (batch, classes, positions)
    ],
)
def test_labels_that_are_no_classes_are_refused(outputs, first, everything, words):
    with pytest.raises(DataError, match=words):
        check_labels("mine", torch.zeros(outputs), torch.tensor(first), [torch.tensor(everything)])


@pytest.mark.parametrize("labels", [[0, 4, -100, 2], [0, 1, 2, 3]])
def test_labels_that_are_classes_pass(labels):
    check_labels("mine", torch.zeros(4, 5), torch.tensor(labels), [torch.tensor(labels)])
    check_labels("mine", torch.zeros(4), torch.tensor(labels), [torch.tensor([99])])  # nothing is classified


def test_only_a_loss_in_the_output_counts_without_targets():
    assert own_loss({"loss": torch.tensor(2.0), "logits": torch.zeros(4, 5)}) == 2.0
    for outputs in (torch.zeros(4, 5), torch.zeros(4, 1), {"logits": torch.zeros(4, 5)}):
        with pytest.raises(LossRequiredError, match="y is None"):
            own_loss(outputs)


def test_floats_take_the_type_of_the_model():
    for dtype in (torch.float64, torch.float32):
        workload = Workload(nn.Linear(3, 1).to(dtype))
        splits = split_samples(workload, (np.zeros((10, 3)), np.zeros((10, 1))), 0)
        assert splits.train.inputs.args[0].dtype == splits.validation.targets.dtype == dtype
    data = TrainingData(np.zeros((4, 3), np.float32), np.arange(4), np.zeros((0, 3)), np.zeros(0), 4, "some")
    assert split_samples(Workload(nn.Linear(3, 4).double()), data, 0).train.inputs.args[0].dtype == torch.float64
