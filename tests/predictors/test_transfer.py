"""The reference predictor on another machine: by calibration figures, and by a few rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.predictors.rows import FIGURES, dataset, frame, measurement, profile_of
from trainpilot.backends import ExecutionSettings
from trainpilot.backends.torch_device import TorchDeviceBackend
from trainpilot.errors import NoDataError
from trainpilot.hardware import Calibration
from trainpilot.predictors import load_predictor, save_predictor
from trainpilot.predictors.fitting import _validation, fit_predictor
from trainpilot.predictors.labels import clean
from trainpilot.predictors.service import predict
from trainpilot.predictors.shipped import load_reference, reference_folder
from trainpilot.predictors.table import Context, table_of_frame
from trainpilot.predictors.transfer import adapt, moved
from trainpilot.workload import Workload

THERE = Context("there", "cpu", 1, "float32", "contiguous")
SLOWER = {
    name: value * (2 if name.endswith("_s") and not name.endswith("per_s") else 0.5) for name, value in FIGURES.items()
}


def on(rows, machine):
    """The same steps, said to be measured on a machine."""
    return table_of_frame(frame([dataclasses.replace(row, machine_id=machine) for row in rows]))


def test_half_the_rates_are_twice_the_time(predictor, rows):
    found = moved(predictor, THERE, SLOWER)
    here = predictor.step.predict(on(rows, "here"))
    np.testing.assert_allclose(found.step.predict(on(rows, "there")), 2 * here, rtol=1e-6)


def test_a_moved_predictor_claims_no_interval(predictor, rows):
    for forecast in moved(predictor, THERE, SLOWER).forecast(on(rows[:5], "there")):
        assert forecast.low is None
        assert forecast.high is None


def test_settings_that_were_never_measured_stay_unknown(predictor, rows):
    context = THERE._replace(threads=64)
    found = moved(predictor, context, SLOWER)
    with pytest.raises(NoDataError, match="threads 64"):
        found.check_known(context)


@pytest.mark.parametrize("count", [10, 50])
def test_a_few_rows_correct_what_the_figures_hide(predictor, count):
    """The machine is 1.6 times as slow as its figures say."""
    there = dataset(models=4, seed=3, speed=1.6, machine_id="there")
    rng = np.random.default_rng(0)
    few = [there[index] for index in rng.choice(len(there), count, replace=False)]
    model = adapt(predictor, clean(frame(few)))
    table = table_of_frame(frame(there))
    truth = np.array([row.step_time_s for row in there])
    error = np.abs(model.predict(table) / truth - 1).mean()
    unadapted = np.abs(moved(predictor, THERE, FIGURES).step.predict(table) / truth - 1).mean()
    assert unadapted > 0.3
    assert error < 0.12
    assert (model.intervals_.inside is not None) == (count >= 10)


def test_with_few_rows_the_adapted_reference_is_taken_and_with_many_the_better_one(predictor):
    there = dataset(models=4, seed=3, speed=1.6, machine_id="there")
    few = fit_predictor("cpu", clean(frame(there[::12])), n_jobs=1, reference=predictor)
    assert few.provenance.adapted_from == predictor.provenance.data_hash
    assert "adapted" in few.parts_in_use
    report = _validation(few)
    assert "the reference has seen other models" in report


def test_many_rows_of_a_machine_need_no_reference(predictor):
    there = dataset(models=8, seed=3, machine_id="there", noise=0.0)
    strange = [dataclasses.replace(row, step_time_s=row.step_time_s**1.3) for row in there]
    many = fit_predictor("cpu", clean(frame(strange)), n_jobs=1, reference=predictor)
    adapted = adapt(predictor, clean(frame(strange)))
    held = many.step.metrics_["family"]["mape"]
    assert held <= adapted.metrics_["family"]["mape"]


def test_an_adapted_predictor_survives_saving(predictor, tmp_path):
    there = dataset(models=4, seed=3, speed=1.6, machine_id="there")
    fitted = fit_predictor("cpu", clean(frame(there[::12])), n_jobs=1, reference=predictor)
    save_predictor(fitted, tmp_path / "0001")
    table = table_of_frame(frame(there))
    loaded = load_predictor(tmp_path / "0001")
    assert loaded.provenance == fitted.provenance
    np.testing.assert_array_equal(loaded.step.predict(table), fitted.step.predict(table))


def test_the_reference_answers_where_nothing_was_fitted(predictor, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINPILOT_REFERENCE_DIR", str(tmp_path / "models"))
    save_predictor(predictor, tmp_path / "models" / "cpu")
    assert reference_folder("cpu") == tmp_path / "models" / "cpu"
    assert load_reference("cpu").provenance == predictor.provenance
    assert load_reference("cuda") is None

    figures = Calibration("x", "cpu", 1, "float32", SLOWER, {}, 0.0)
    monkeypatch.setattr(TorchDeviceBackend, "calibration", lambda *args, **kwargs: figures)
    row = dataset(models=1, families=["mlp"])[0]
    work = Workload("mlp", batch_size=row.batch_size, optimizer="adam", dataset_size=100)
    found = predict(work, "cpu", settings=ExecutionSettings(threads=1), profile=profile_of(row))
    assert found.source == "learned"
    assert found.step_time_s.low is None
    assert any("another machine" in note for note in found.notes)
    expected = 2 * predictor.step.predict(on([row], "here"))[0]
    assert found.step_time_s.value == pytest.approx(expected, rel=1e-6)


def test_an_unseen_optimizer_on_another_machine_is_not_learned(predictor):
    row = measurement(dataset(models=1)[0].op_groups, 1.0, optimizer="lion", machine_id="there")
    with pytest.raises(NoDataError, match="lion"):
        moved(predictor, THERE, SLOWER).forecast(table_of_frame(frame([row])))
