"""Training as a whole: runs, their records, the documented environment, and the program."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trainpilot as tp
from trainpilot.backends import Backend, DeviceInfo, ExecutionSettings, Usability, get_backend
from trainpilot.errors import (
    BackendUnusableError,
    DataError,
    LossRequiredError,
    ModelError,
    NonFiniteLossError,
    StoreError,
    TrainingError,
    UnknownNameError,
    UnsupportedError,
    UsageError,
)
from trainpilot.hardware import Calibration, machine, usable_cores
from trainpilot.hardware.calibration import cache_path, decisive_versions
from trainpilot.hardware.probes import PROBES_VERSION
from trainpilot.predictors import Estimate
from trainpilot.store import import_spilled, open_store
from trainpilot.train_orchestrated import TrainingEnvironment, TrainOptions, format_result, main, run_training, train
from trainpilot.workload import Workload
from trainpilot.zoo.data import TrainingData, digits, write_digits

REPOSITORY = Path(__file__).parents[1]
CONFIG = {"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}


@pytest.fixture(autouse=True)
def calibrated(data_dir: Path) -> None:
    """Figures in the cache, so that no test spends seconds on probing them."""
    threads = usable_cores()
    rates = {"matmul_flops_per_s": 5e10, "conv_flops_per_s": 3e10, "memory_bytes_per_s": 1e10}
    figures = {**rates, "dispatch_s": 2e-6, "step_overhead_s": 2e-4}
    content = Calibration(machine().machine_id, "cpu", threads, "float32", figures, decisive_versions(), 0.0)
    path = cache_path("cpu", threads, "float32", data_dir / "calibration")
    path.parent.mkdir()
    path.write_text(json.dumps({"schema": 1, "probes": PROBES_VERSION, **dataclasses.asdict(content)}))


@pytest.fixture(scope="module")
def some_digits() -> TrainingData:
    """200 real digits to train on, 100 held out."""
    whole = digits()
    return TrainingData(whole.x_train[:200], whole.y_train[:200], whole.x_val[:100], whole.y_val[:100], 10, "digits")


@pytest.fixture
def quiet(monkeypatch) -> None:
    """Whatever else runs on the machine is not seen."""
    monkeypatch.setattr("trainpilot.train_orchestrated.record.contention", lambda signs, **_: "")


# ------------------------------------------------------------------ train()


def rows() -> list[Any]:
    with open_store() as store:
        return list(store.rows())


def mlp(**changes: Any) -> Workload:
    return Workload("mlp", settings={"features": 64, "classes": 10}, **{"batch_size": 32, "epochs": 8, **changes})


def test_training_is_real_and_recorded(some_digits, quiet):
    result = train(mlp(), some_digits, "cpu")
    assert result.status == "success"
    assert result.loss < 0.5 * result.initial_loss
    assert result.accuracy > 0.7
    assert (result.steps, len(result.epochs)) == (7 * 8, 8)
    assert result.execution_time_s >= sum(epoch.time_s for epoch in result.epochs)
    [row] = rows()
    assert (row.row_id, row.origin, row.sweep_id, row.status) == (result.row_id, "training", "training", "ok")
    assert (row.backend, row.actual_placement, row.batch_size, row.optimizer) == ("cpu", "cpu", 32, "adamw")
    assert row.step_time_s == result.step_time_s
    assert row.step_quantiles_s["min"] <= row.step_time_s <= row.step_quantiles_s["max"]
    assert row.steps == 6 * 8 - 1  # full batches after the first step
    assert row.first_step_s > 0
    assert row.setup_time_s == result.setup_time_s
    assert row.data_time_s > 0
    assert row.energy_j is None
    assert row.loss_finite is True
    assert row.features["batch_size"] == 32
    assert not row.simulated
    assert result.recorded_in == "store"
    assert result.warnings == ()


def test_same_seed_gives_the_same_run_and_another_seed_another(some_digits):
    losses = [
        [epoch.loss for epoch in train(mlp(epochs=2), some_digits, "cpu", seed=seed).epochs] for seed in (1, 1, 2)
    ]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    assert len({row.row_id for row in rows()}) == 3


def test_nothing_of_the_user_changes(some_digits):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    model[1].eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    np.random.seed(5)
    expected = (torch.rand(3), np.random.rand(3))
    torch.manual_seed(5)
    np.random.seed(5)
    threads = torch.get_num_threads()
    x, y = some_digits.x_train.copy(), some_digits.y_train.copy()
    train(Workload(model, epochs=1), (x, y), "cpu", seed=9)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])
    assert torch.get_num_threads() == threads
    assert np.array_equal(x, some_digits.x_train)
    assert np.array_equal(y, some_digits.y_train)


def test_module_and_builder_of_the_user(some_digits):
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    for model in (build(), build):
        result = tp.train(tp.Workload(model, epochs=3), (some_digits.x_train, some_digits.y_train), "cpu")
        assert result.loss < result.initial_loss
        assert result.accuracy is not None
    assert {row.family for row in rows()} == {"custom"}


def test_builder_in_a_file(tmp_path, some_digits):
    file = tmp_path / "mine.py"
    file.write_text(
        textwrap.dedent(
            """
            from torch import nn

            def build(width=16):
                return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
            """
        )
    )
    workload = Workload(f"{file}:build", settings={"width": 24}, epochs=3)
    result = train(workload, (some_digits.x_train, some_digits.y_train), "cpu")
    assert result.params == 64 * 24 + 24 + 24 * 10 + 10
    assert result.loss < result.initial_loss


def test_regression_learns_and_has_no_accuracy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)
    result = train(Workload(nn.Linear(3, 1), epochs=20, optimizer="adam", learning_rate=0.05), (x, y[:, None]), "cpu")
    assert result.loss < 0.1 * result.initial_loss
    assert result.accuracy is None


def test_model_with_several_inputs_and_a_loss_of_its_own():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return {"loss": (self.layer(a) - b).square().mean()}

    rng = np.random.default_rng(0)
    a = rng.standard_normal((40, 2))
    result = train(Workload(Pair(), epochs=5, batch_size=8), ({"a": a, "b": a[:, :1]}, None), "cpu")
    assert (result.steps, result.accuracy) == (20, None)
    assert result.loss < result.initial_loss


def test_batch_size_larger_than_the_data_is_explained(some_digits):
    result = train(mlp(epochs=3), some_digits, "cpu", batch_size=4096)
    assert result.steps == 3
    assert "4096 is more than the 200 training samples" in result.warnings[0]
    assert rows()[0].batch_size == 200


@pytest.mark.parametrize("arguments", [{"batch_size": 0}, {"epochs": 0}, {"epochs": 1.5}, {"batch_size": -3}])
def test_impossible_plans(some_digits, arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        train(mlp(), some_digits, "cpu", **arguments)


def test_accumulation_is_refused(some_digits):
    with pytest.raises(UsageError, match="accumulate"):
        train(mlp(accumulate=4), some_digits, "cpu")


def test_non_finite_loss_is_told_and_recorded(some_digits):
    with pytest.raises(NonFiniteLossError, match="lower learning rate"):
        train(mlp(optimizer="sgd", learning_rate=1e30), some_digits, "cpu")
    [row] = rows()
    assert (row.status, row.step_time_s, row.loss_finite) == ("nonfinite_loss", None, False)
    assert "loss is" in row.reason


def test_failing_step_is_told_and_recorded(some_digits):
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.calls = 0

        def forward(self, x):
            return self.layer(x.flatten(1))

    model = Stubborn()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets + (5 if len(targets) == 8 else 0))

    with pytest.raises(TrainingError, match=r"step \d+ failed: IndexError: Target"):
        train(Workload(model, loss=loss, epochs=1), some_digits, "cpu")
    [row] = rows()
    assert row.status == "failed"
    assert "Target" in row.reason


def test_run_without_a_full_step_has_no_label(some_digits):
    train(mlp(epochs=1), some_digits, "cpu", batch_size=200)
    [row] = rows()
    assert (row.status, row.step_time_s) == ("failed", None)
    assert "no label" in row.reason


def test_checkpoint_holds_the_trained_weights(tmp_path, some_digits):
    path = tmp_path / "weights.pt"
    result = train(mlp(), some_digits, "cpu", checkpoint=path)
    assert result.checkpoint == path
    from trainpilot import zoo

    model = zoo.get("mlp").build(dict(mlp().settings))
    model.load_state_dict(torch.load(path, weights_only=True))
    model.eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(some_digits.x_val.reshape(100, 64)))
    accuracy = (outputs.argmax(1).numpy() == some_digits.y_val).mean()
    assert accuracy == pytest.approx(result.accuracy)


def test_unwritable_checkpoint_is_refused_before_training(tmp_path, some_digits):
    with pytest.raises(TrainingError, match="cannot be written"):
        train(mlp(), some_digits, "cpu", checkpoint=tmp_path / "missing" / "weights.pt")
    assert rows() == []


def test_prediction_stands_beside_what_happened(some_digits):
    result = train(mlp(epochs=2), some_digits, "cpu")
    assert result.prediction.backend == "cpu"
    assert result.predicted_time_s == result.prediction.total_time_s.value
    assert "predicted" in result.message
    text = format_result(result)
    assert "actual / predicted" in text
    assert result.row_id in text


def test_auto_chooses_and_says_why(some_digits):
    result = train(mlp(epochs=1), some_digits)
    assert result.backend == "cpu"
    assert "Core ML needs macOS" in result.selection.excluded["ane"] or sys.platform == "darwin"
    assert result.selection.reasons


# ------------------------------------------------------------------ backends that do not work


class Broken(Backend):
    """Passes its probe and fails when it is used, or does not pass it."""

    name = "cuda"  # type: ignore[misc]

    def __init__(self, probed: str = "", prepared: Exception | None = None) -> None:
        self.probed, self.prepared = probed, prepared

    def probe(self, timeout_s=30.0):
        return Usability(True, not self.probed, self.probed)

    def info(self):
        return DeviceInfo("cuda", "a double", None, None, None)

    def calibration(self, settings=None, *, refresh=False, run=True):
        return None

    def prepare(self, workload, settings=None, *, clock=None):
        assert self.prepared is not None
        raise self.prepared


def test_d09_forced_backend_that_cannot_run_is_an_error(some_digits):
    with pytest.raises(BackendUnusableError, match="no kernel image is available"):
        train(mlp(), some_digits, Broken("no kernel image is available"))
    assert rows() == []
    with pytest.raises(UnknownNameError, match="cpu"):
        train(mlp(), some_digits, "tpu")


def test_simulated_backend_does_not_train(some_digits):
    with pytest.raises(BackendUnusableError, match="does not train"):
        train(mlp(), some_digits, "simulated")


@pytest.mark.parametrize("kind", [BackendUnusableError, UnsupportedError])
def test_d09_auto_takes_the_next_backend_and_says_why(some_digits, monkeypatch, caplog, kind):
    from trainpilot.predictors import Estimate, Prediction, predict

    def hopeful(workload, backend="cpu", **options):
        if backend == "cpu":
            return predict(workload, backend, **options)
        quick = Estimate(1e-9)
        return Prediction(backend, quick, quick, quick, quick, None, None, "learned", True)

    broken = Broken(prepared=kind("the driver is too old"))
    monkeypatch.setattr("trainpilot.predictors.predict", hopeful)
    monkeypatch.setattr(
        "trainpilot.train_orchestrated.training.candidate_backends", lambda: (broken, get_backend("cpu"))
    )
    result = train(mlp(epochs=1), some_digits)
    assert (result.status, result.backend) == ("success", "cpu")
    assert "cuda was chosen but could not be used (the driver is too old)" in result.warnings[0]
    assert "the driver is too old" in caplog.text
    assert "the driver is too old" in format_result(result)


# ------------------------------------------------------------------ a store that cannot take the row


@pytest.mark.parametrize("error", [StoreError("the file is damaged"), PermissionError(13, "Permission denied")])
def test_row_goes_to_a_file_where_the_store_cannot_take_it(some_digits, monkeypatch, caplog, data_dir, error):
    def closed(store, row, operators):
        raise error

    monkeypatch.setattr("trainpilot.store.TimingStore.append", closed)
    result = train(mlp(epochs=1), some_digits, "cpu")
    assert result.status == "success"
    path = Path(result.recorded_in)
    assert path.parent == data_dir / "spill"
    monkeypatch.undo()
    content = json.loads(path.read_text())["measurement"]
    assert (content["row_id"], content["status"], content["origin"]) == (result.row_id, "ok", "training")
    assert content["step_time_s"] == result.step_time_s
    with open_store(f"sqlite:///{data_dir / 'later.sqlite'}") as store:
        assert import_spilled(path, store)
        assert [row.row_id for row in store.rows()] == [result.row_id]
    assert str(path) in result.warnings[0]
    assert "could not be recorded" in caplog.text


def test_row_goes_to_the_temporary_folder_where_the_data_folder_cannot_take_it(
    some_digits, monkeypatch, tmp_path, data_dir
):
    (data_dir / "spill").write_text("a file where the folder should be")

    def closed(store, row, operators):
        raise StoreError("the disk is full")

    monkeypatch.setattr("trainpilot.store.TimingStore.append", closed)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = train(mlp(epochs=1), some_digits, "cpu")
    assert Path(result.recorded_in).parent == tmp_path
    assert json.loads(Path(result.recorded_in).read_text())["measurement"]["row_id"] == result.row_id
    assert "`trainpilot data import" in result.warnings[0]


def test_damaged_store_is_refused_before_training_and_left_as_it_is(digits_folder, data_dir, capsys):
    content = b"this is no database at all, but text" * 100
    (data_dir / "timings.sqlite").write_bytes(content)
    assert main(["--model", "small_cnn", "--dataset", str(digits_folder), "--epochs", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "it is not a SQLite database" in captured.err
    assert (data_dir / "timings.sqlite").read_bytes() == content
    assert not (data_dir / "spill").exists()


def test_store_in_memory_keeps_no_row_and_says_so(some_digits, monkeypatch, quiet):
    monkeypatch.setenv("TRAINPILOT_STORE", "sqlite://")
    result = train(mlp(epochs=1), some_digits, "cpu")
    assert result.recorded_in == "memory"
    assert "kept in memory" in result.warnings[0]
    assert "memory only" in format_result(result)


# ------------------------------------------------------------------ what a run needs, told before it begins


def test_no_targets_need_a_loss_of_the_models_own(some_digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(LossRequiredError, match="y is None"):
        train(Workload(model), (some_digits.x_train, None), "cpu")
    assert rows() == []
    with_loss = Workload(model, loss=lambda outputs, _targets: outputs.square().mean())
    result = train(with_loss, (some_digits.x_train, None), "cpu")
    assert result.loss < result.initial_loss


def test_labels_beyond_the_classes_of_an_own_model_are_refused_before_a_step(some_digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
    with pytest.raises(DataError, match="labels must be from 0 to 6, since the model has 7 classes; one is 9"):
        train(Workload(model), (some_digits.x_train, some_digits.y_train), "cpu")
    assert rows() == []


def test_float64_model_trains(some_digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
    result = train(Workload(model, epochs=2), (some_digits.x_train, some_digits.y_train), "cpu")
    assert result.loss < result.initial_loss


def test_wrong_arguments_of_train(some_digits):
    with pytest.raises(UsageError, match="seed"):
        train(mlp(), some_digits, "cpu", seed=-3)
    with pytest.raises(UsageError, match="make one with Workload"):
        train("mlp", some_digits, "cpu")
    with pytest.raises(UsageError, match="threads must be at most"):
        train(mlp(), some_digits, "cpu", settings=ExecutionSettings(threads=usable_cores() + 1))
    with pytest.raises(UnknownNameError, match="backend"):
        train(mlp(), some_digits, None)
    for changes in ({"seed": -1}, {"learning_rate": -1.0}):
        with pytest.raises(UsageError, match=next(iter(changes))):
            TrainingEnvironment(some_digits.x_train, some_digits.y_train, CONFIG, **changes)


# ------------------------------------------------------------------ what a result tells


def test_prediction_is_compared_with_the_steps_alone(some_digits):
    result = train(mlp(epochs=2), some_digits, "cpu")
    assert result.warm_up_time_s + result.training_time_s == pytest.approx(result.execution_time_s)
    setup, total = Estimate(3.0, 2.0, 5.0, 0.9), Estimate(13.0, 10.0, 20.0, 0.9)
    known = dataclasses.replace(
        result,
        prediction=dataclasses.replace(result.prediction, setup_time_s=setup, total_time_s=total, source="learned"),
        execution_time_s=9.0,
        setup_time_s=3.5,
        first_step_s=0.6,
        step_time_s=0.1,
    )
    assert known.predicted_training_time == Estimate(10.0, 8.0, 15.0, 0.9)  # the total without the setup
    assert known.warm_up_time_s == pytest.approx(4.0)  # 3.5 s, and 0.5 s more than a usual step
    assert known.training_time_s == pytest.approx(5.0)
    text = format_result(known)
    assert "5.00 s, predicted 10.00 s (8.00 s to 15.00 s), learned; actual / predicted = 0.50" in text
    assert "4.00 s with the first step's surplus, predicted 3.00 s (2.00 s to 5.00 s)" in text
    document = known.to_dict()
    assert (document["predicted_time_s"], document["predicted_training_time_s"]) == (13.0, 10.0)
    # Calibration figures tell no setup, so the total is that of the steps already.
    unknown = dataclasses.replace(known, prediction=dataclasses.replace(known.prediction, setup_time_s=None))
    assert unknown.predicted_training_time == total
    assert "surplus, predicted unknown" in format_result(unknown)


def test_run_under_contention_is_told(some_digits, monkeypatch, caplog):
    monkeypatch.setattr("trainpilot.train_orchestrated.record.contention", lambda signs, **_: "a neighbour was busy")
    result = train(mlp(epochs=1), some_digits, "cpu")
    assert rows()[0].contended
    assert result.warnings[-1].startswith("a neighbour was busy during the run")
    assert "a neighbour was busy" in caplog.text
    assert "a neighbour was busy" in format_result(result)


def test_nothing_held_out_is_told(some_digits):
    result = train(mlp(epochs=1), (some_digits.x_train[:2], np.array([0, 1])), "cpu")
    assert result.validation_size == 0
    assert "unknown: there are too few samples to hold any out" in format_result(result)


# ------------------------------------------------------------------ TrainingEnvironment


def test_environment_trains_the_documented_example():
    rng = np.random.default_rng(0)
    x, y = rng.random((100, 28, 28)), rng.integers(0, 10, 100)
    environment = TrainingEnvironment(x, y, CONFIG)
    result = environment.execute_training("cpu", {})
    assert {"status", "backend", "execution_time", "message"} <= set(result)
    assert (result["status"], result["backend"]) == ("success", "cpu")
    assert result["execution_time"] > 0
    assert result["epochs"] == 1
    assert result["steps"] == math.ceil((100 - len(environment.data.y_val)) / 32)
    assert 0 <= result["accuracy"] <= 1
    json.dumps(result, allow_nan=False)


def test_environment_learns_real_digits_with_given_validation(some_digits):
    d = some_digits
    environment = TrainingEnvironment(
        d.x_train, d.y_train, CONFIG, X_val=d.x_val, y_val=d.y_val, epochs=10, learning_rate=3e-3
    )
    result = environment.execute_training("auto", {"params": 50_000})
    assert result["loss"] < 0.5 * result["initial_loss"]
    assert result["accuracy"] > 0.7
    assert any("50000 parameters" in text for text in result["warnings"])
    assert rows()[0].model_settings["image_size"] == 8


def test_environment_starts_from_the_same_weights_each_time(some_digits):
    environment = TrainingEnvironment(some_digits.x_train, some_digits.y_train, CONFIG)
    first, second = (environment.execute_training("cpu", {}) for _ in range(2))
    assert first["initial_loss"] == second["initial_loss"]
    assert first["row_id"] != second["row_id"]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((10, 8, 8)), np.zeros(9, int), "10 samples"),
        (np.full((10, 8, 8), math.nan), np.arange(10) % 2, "NaN"),
        (np.zeros((10, 8, 8)), np.arange(10) - 1, "negative"),
        (np.zeros((10, 8, 8)), np.full(10, 0.5), "whole numbers"),
        (np.zeros((10, 8, 9)), np.arange(10) % 2, r"\(8, 9\)"),
        (np.zeros((0, 8, 8)), np.zeros(0, int), "empty"),
        (np.array([[object()]] * 4), np.zeros(4, int), "numbers"),
    ],
)
def test_environment_refuses_wrong_arrays(x, y, words):
    with pytest.raises(DataError, match=words):
        TrainingEnvironment(x, y, CONFIG)


def test_environment_refuses_wrong_configurations():
    x, y = np.zeros((10, 8, 8)), np.arange(10) % 2
    with pytest.raises(UnknownNameError, match="small_cnn"):
        TrainingEnvironment(x, y, {"name": "small_cn"})
    with pytest.raises(UsageError, match="has_rnn"):
        TrainingEnvironment(x, y, {**CONFIG, "has_rnn": True})
    with pytest.raises(UsageError, match="batch_size"):
        TrainingEnvironment(x, y, CONFIG, batch_size=0)
    environment = TrainingEnvironment(x, y, CONFIG)
    with pytest.raises(UnknownNameError, match="backend"):
        environment.execute_training("tpu", {})
    with pytest.raises(UsageError, match="dict"):
        environment.execute_training("cpu", None)


@pytest.mark.skipif(sys.platform == "darwin", reason="there Core ML may be usable")
def test_environment_refuses_the_engine_with_the_reason():
    environment = TrainingEnvironment(np.zeros((10, 8, 8)), np.arange(10) % 2, CONFIG)
    with pytest.raises(BackendUnusableError, match="Core ML needs macOS"):
        tp.HardwareOrchestrator().act("ane", environment)


# ------------------------------------------------------------------ the program


@pytest.fixture(scope="module")
def digits_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder


def test_main_trains_and_prints(digits_folder, capsys):
    code = main(["--model", "small_cnn", "--dataset", str(digits_folder), "--epochs", "2"])
    output = capsys.readouterr().out
    assert code == 0
    for word in ("backend", "cpu", "time", "predicted", "loss", "accuracy", "recorded"):
        assert word in output
    [row] = rows()
    assert row.row_id in output


def test_main_json(digits_folder, capsys):
    arguments = ["--model", "mlp", "--dataset", str(digits_folder), "--epochs", "1", "--json", "--set", "layers=2"]
    assert main([*arguments, "--backend", "cpu", "--batch-size", "100"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert (document["status"], document["backend"]) == ("success", "cpu")
    assert rows()[0].model_settings["layers"] == 2
    assert document["steps"] == math.ceil(1437 / 100)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "small_cn"], 2, "small_cnn"),
        (["--model", "small_cnn", "--backend", "tpu"], 2, "cpu"),
        (["--model", "small_cnn", "--set", "colour=1"], 2, "colour"),
        (["--model", "small_cnn", "--set", "layers"], 2, "NAME=VALUE"),
        (["--model", "small_cnn", "--set", "layers=3", "--set", "layers=4"], 2, "twice"),
        (["--model", "small_cnn", "--batch-size", "0"], 2, "batch_size"),
        (["--model", "small_cnn", "--batch-size", "many"], 2, "invalid int"),
        (["--model", "small_cnn", "--seed", "-1"], 2, "seed"),
        (["--model", "small_cnn", "--seed", "99999999999999999999"], 2, "seed"),
        (["--model", "small_cnn", "--threads", "9999"], 2, "threads must be at most"),
        (["--model", "small_cnn", "--learning-rate", "nan"], 2, "learning_rate"),
        (["--model", "small_cnn", "--optimizer", "adamm"], 2, "adam"),
        (["--model", "small_cnn", "--checkpoint", "/dev/null/weights.pt"], 1, "checkpoint"),
        (["--model", "missing.py:build"], 1, "missing.py"),
        (["--model", "small_cnn", "--nonsense"], 2, "nonsense"),
        ([], 2, "--model"),
    ],
)
def test_main_refuses_in_one_line(digits_folder, capsys, arguments, code, words):
    assert main(["--dataset", str(digits_folder), *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.skipif(sys.platform == "darwin", reason="there Core ML may be usable")
def test_main_refuses_an_unusable_backend(digits_folder, capsys):
    assert main(["--model", "small_cnn", "--dataset", str(digits_folder), "--backend", "ane"]) == 1
    assert "Core ML needs macOS" in capsys.readouterr().err


def test_main_dataset_problems(tmp_path, capsys):
    assert main(["--model", "small_cnn", "--dataset", str(tmp_path / "missing")]) == 1
    assert "missing" in capsys.readouterr().err
    assert main(["--model", "small_cnn", "--dataset", str(tmp_path)]) == 1
    assert "empty" in capsys.readouterr().err


def test_builder_that_raises_or_returns_no_module(tmp_path, digits_folder):
    file = tmp_path / "bad.py"
    file.write_text("def build():\n    raise ValueError('no')\n\ndef other():\n    return 3\n")
    with pytest.raises(ModelError, match="ValueError: no"):
        run_training(TrainOptions(model=f"{file}:build", dataset=digits_folder))
    with pytest.raises(ModelError, match="int"):
        run_training(TrainOptions(model=f"{file}:other", dataset=digits_folder))


def run_python(arguments: list[str], data_dir: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TRAINPILOT_DATA_DIR": str(data_dir), "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, **options
    )


def test_script_as_documented(digits_folder, data_dir):
    arguments = [str(REPOSITORY / "train_orchestrated.py"), "--model", "small_cnn", "--dataset"]
    done = run_python([*arguments, str(digits_folder), "--epochs", "1"], data_dir)
    assert done.returncode == 0, done.stderr
    assert "backend" in done.stdout
    missing = run_python([*arguments, str(digits_folder / "missing")], data_dir)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.count("\n") == 1


def test_usage_errors_load_neither_torch_nor_xgboost(data_dir):
    # pandas and scikit-learn are as slow to load.
    script = """
        import sys
        import train_orchestrated, hardware_orchestrator
        for arguments in (
            ["--model", "small_cn", "--dataset", "."],
            ["--model", "small_cnn", "--dataset", "/nonexistent"],
            ["--model", "small_cnn", "--dataset", ".", "--backend", "tpu"],
            ["--model", "small_cnn", "--dataset", ".", "--batch-size", "0"],
            ["--help"],
        ):
            try:
                assert train_orchestrated.main(arguments) in (1, 2), arguments
            except SystemExit:
                assert arguments == ["--help"]
            print(sorted({"torch", "xgboost", "pandas", "sklearn"} & set(sys.modules)))
    """
    done = run_python(["-c", textwrap.dedent(script)], data_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[]\n") == 5


def test_ctrl_c_stops_at_a_step_and_records_what_was_done(digits_folder, data_dir):
    environment = {**os.environ, "TRAINPILOT_DATA_DIR": str(data_dir), "PYTHONPATH": str(REPOSITORY)}
    arguments = ["--model", "small_cnn", "--dataset", str(digits_folder), "--epochs", "100000", "--json"]
    checkpoint = data_dir / "weights.pt"
    with subprocess.Popen(
        [sys.executable, str(REPOSITORY / "train_orchestrated.py"), *arguments, "--checkpoint", str(checkpoint)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        line = process.stderr.readline()
        process.stderr.readline()  # the second line of progress: at least one step after the first is done
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert line.startswith("epoch 1"), line + errors
    assert process.returncode == 130
    document = json.loads(output)
    assert document["status"] == "interrupted"
    assert 0 < document["steps"] < document["planned_steps"]
    assert "interrupted after" in document["message"]
    [row] = rows()
    assert (row.row_id, row.status) == (document["row_id"], "ok")
    assert row.reason.startswith("interrupted after")
    assert torch.load(checkpoint, weights_only=True)


FOUNDING_EXAMPLE = """
from hardware_orchestrator import HardwareOrchestrator
from train_orchestrated import TrainingEnvironment
import numpy as np
import time
# Initialize orchestrator and environment
agent = HardwareOrchestrator()
X_train = np.random.rand(100, 28, 28)
y_train = np.random.randint(0, 10, 100)
environment = TrainingEnvironment(X_train, y_train, {"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False})
# Profile workload
profile = agent.profile_workload({"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False}, 100)
# Observe hardware and decide backend
hw_state = {"ane_available": False, "cpu_utilization": 0.3, "timestamp": time.time()}
agent.observe(hw_state, profile)
backend = agent.think()
# Execute training
result = agent.act(backend, environment)
print(f"Training result: {result['message']}")

from hardware_orchestrator import HardwareOrchestrator
orchestrator = HardwareOrchestrator()
profile = orchestrator.profile_workload(
{"name": "small_cnn", "layers": 3, "has_conv": True, "has_rnn": False},
dataset_size=10000
)
print(f"Model parameters: {profile['params']}, Depth: {profile['depth']}")

# Assuming profile was gathered previously
hw_state = {"ane_available": True, "cpu_utilization": 0.2, "timestamp": time.time()}
ane_time = orchestrator.predict_performance(profile, "ane")
cpu_time = orchestrator.predict_performance(profile, "cpu")
backend, confidence = orchestrator.select_backend(profile, hw_state)
print(f"ANE: {ane_time:.2f}s, CPU: {cpu_time:.2f}s => Selected: {backend} (confidence: {confidence})")
"""  # noqa: E501


def test_founding_example_runs_as_it_stands(data_dir, tmp_path):
    done = run_python(["-W", "error::UserWarning", "-c", FOUNDING_EXAMPLE], data_dir, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Training result: trained small_cnn on cpu")
    assert lines[1].startswith("Model parameters: ")
    if sys.platform != "darwin":
        assert "ANE: nans, CPU: " in lines[2]
        assert lines[2].endswith("Selected: ane (confidence: 0.85)")
