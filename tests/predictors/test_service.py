"""Predicting a workload: where each number comes from, and what is said where none is known."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainpilot as tp
from tests.predictors.rows import FIGURES, dataset, frame, group, law_s, measurement, model_step, profile_of
from trainpilot.backends import ExecutionSettings
from trainpilot.errors import BackendUnusableError, NoDataError, PredictorError, UnknownNameError, UsageError
from trainpilot.hardware import Calibration, cores
from trainpilot.predictors import registry, service
from trainpilot.predictors.fitting import fit_predictor
from trainpilot.predictors.labels import clean
from trainpilot.predictors.table import Context, table_of_profile

ONE_THREAD = ExecutionSettings(threads=1)
HERE = Context("here", "cpu", 1, "float32", "contiguous")


class DeviceDouble:
    """A backend that gives its calibration, or nothing, or is unusable."""

    def __init__(self, name, figures=None, reason=None):
        self.name = name
        self._figures = figures
        self._reason = reason
        self.probed = 0
        self.simulated = False

    def calibration(self, settings=None, *, refresh=False, run=True):
        if self._reason:
            raise BackendUnusableError(self._reason)
        if self._figures is None or not run:
            return None
        self.probed += 1
        return Calibration("here", self.name, settings.threads or 1, settings.dtype, self._figures, {}, 0.0)


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    found = {
        "cpu": DeviceDouble("cpu", FIGURES),
        "cuda": DeviceDouble("cuda"),
        "ane": DeviceDouble("ane", reason="Core ML needs macOS"),
    }
    monkeypatch.setattr(service, "get_backend", found.__getitem__)
    monkeypatch.setattr(service, "machine", lambda: dataclasses.make_dataclass("M", ["machine_id"])("here"))
    return found


def row(family="transformer", batch=16, width=128, depth=4, **changes):
    groups, params = model_step(family, width, batch, depth)
    return measurement(groups, law_s(groups), family=family, model="asked", batch_size=batch, params=params, **changes)


def workload(batch=16, **plan):
    return tp.Workload("mlp", batch_size=batch, **{"dataset_size": 160, "epochs": 2, **plan})


def ask(asked, backend="cpu", *, plan=None, predictor=None, **options):
    return service.predict(
        plan or workload(asked.batch_size),
        backend,
        settings=options.pop("settings", ONE_THREAD),
        profile=profile_of(asked),
        predictor=predictor,
        **options,
    )


def test_learned_where_the_predictor_has_data(predictor):
    asked = row()
    found = ask(asked, predictor=predictor)
    assert found.source == "learned"
    assert found.in_range
    assert found.step_time_s.value == pytest.approx(asked.step_time_s, rel=0.1)
    assert found.step_time_s.low < asked.step_time_s < found.step_time_s.high
    assert found.step_time_s.level == 0.9
    assert found.setup_time_s is not None
    # 160 samples in batches of 16, two epochs, no rest.
    assert found.epoch_time_s.value == pytest.approx(10 * found.step_time_s.value)
    assert found.total_time_s.value == pytest.approx(20 * found.step_time_s.value + found.setup_time_s.value)
    assert found.total_time_s.low < found.total_time_s.value < found.total_time_s.high
    assert found.peak_memory_bytes.value == pytest.approx(2e7 + 20 * asked.features["params"], rel=0.1)
    assert found.energy_j is None
    assert "data loading is unknown and not in the total" in found.notes


def test_the_predictor_in_use_is_asked_without_being_given(predictor, monkeypatch):
    version = registry.store_version(predictor)
    registry.activate("cpu", version)
    assert ask(row()) == ask(row(), predictor=predictor)


def test_analytic_from_calibration_before_any_row_exists(devices):
    asked = measurement([group("matmul", flops=4e9, size=0, calls=100)], None, batch_size=16)
    found = ask(asked)
    assert found.source == "analytic"
    assert found.step_time_s.value == pytest.approx(0.1 + 4.5e-4 + 5e-5)
    assert (found.step_time_s.low, found.step_time_s.high) == (None, None)
    assert not found.in_range
    assert found.setup_time_s is None
    assert found.total_time_s.value == pytest.approx(20 * found.step_time_s.value)
    assert found.peak_memory_bytes.value == asked.features["peak_bytes"]
    assert found.peak_memory_bytes.low is None
    assert "no data for backend cpu: run trainpilot benchmark --backend cpu and trainpilot fit" in found.notes
    assert any("calibration figures alone" in note for note in found.notes)
    assert any("setup time is unknown" in note for note in found.notes)


def test_nothing_is_probed_unless_allowed(devices):
    found = ask(row(), calibrate=False)
    assert found.source == "unknown"
    assert found.step_time_s is None
    assert devices["cpu"].probed == 0


@pytest.mark.parametrize(
    ("backend", "reason"),
    [("cuda", "no data for backend cuda: run trainpilot benchmark"), ("ane", "Core ML needs macOS")],
)
def test_c03_unknown_backends_get_no_number_but_the_command_that_would_make_one(predictor, backend, reason):
    registry.activate("cpu", registry.store_version(predictor))
    found = ask(row(), backend)
    assert found.source == "unknown"
    assert not found.in_range
    assert (found.step_time_s, found.setup_time_s, found.epoch_time_s, found.total_time_s) == (None,) * 4
    assert any(reason in note for note in found.notes)
    assert any(f"no data for backend {backend}: run trainpilot benchmark --backend {backend}" in n for n in found.notes)


def test_a_trace_is_added_up_once_for_each_context_scale_and_part():
    profile = profile_of(row())
    first = table_of_profile(profile, HERE)
    assert table_of_profile(dataclasses.replace(profile, epochs=3), HERE) is first
    for other in (
        table_of_profile(profile, HERE._replace(threads=2)),
        table_of_profile(profile, HERE, batch_scale=2.0),
        table_of_profile(profile, HERE, phases=("forward",)),
        table_of_profile(dataclasses.replace(profile, optimizer="sgd"), HERE),
        table_of_profile(dataclasses.replace(profile, features={**profile.features}), HERE),
    ):
        assert other is not first


@pytest.mark.parametrize("backend", ["ane", "coreml", "hip", "xpu"])
def test_c03_the_predictor_itself_gives_no_number_for_another_backend(predictor, backend):
    table = table_of_profile(profile_of(row()), HERE._replace(backend=backend))
    with pytest.raises(NoDataError, match=f"no data for backend {backend}: run trainpilot benchmark"):
        predictor.forecast(table)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"threads": 4}, "threads 4 (measured: 1)"),
        ({"dtype": "bfloat16"}, "dtype bfloat16 (measured: float32)"),
        ({"memory_format": "channels_last"}, "memory format channels_last (measured: contiguous)"),
        ({"machine_id": "elsewhere"}, "on this machine"),
    ],
)
def test_c03_unseen_categories_are_never_priced_as_others(predictor, change, text):
    table = table_of_profile(profile_of(row()), HERE._replace(**change))
    with pytest.raises(NoDataError) as caught:
        predictor.forecast(table)
    assert text in str(caught.value)


def test_c03_an_unseen_setting_falls_back_to_calibration_and_says_so(predictor, monkeypatch):
    monkeypatch.setattr(cores, "granted_cores", lambda: 4)
    registry.activate("cpu", registry.store_version(predictor))
    found = ask(row(), settings=ExecutionSettings(threads=3))
    assert found.source == "analytic"
    assert any("threads 3 (measured: 1)" in note for note in found.notes)


def elsewhere(monkeypatch):
    monkeypatch.setattr(service, "machine", lambda: dataclasses.make_dataclass("M", ["machine_id"])("elsewhere"))


def test_a_predictor_of_another_machine_is_moved_by_calibration_figures_without_an_interval(
    predictor, devices, monkeypatch
):
    registry.activate("cpu", registry.store_version(predictor))
    here = ask(row())
    elsewhere(monkeypatch)
    # Every rate is a third and every dispatch takes three times as long.
    slower = {name: value * (1 / 3 if name.endswith("per_s") else 3) for name, value in FIGURES.items()}
    devices["cpu"] = DeviceDouble("cpu", slower)
    found = ask(row())
    assert found.source == "learned"
    assert found.step_time_s.value == pytest.approx(3 * here.step_time_s.value)
    assert (found.step_time_s.low, found.step_time_s.high) == (None, None)
    assert any("on another machine and is moved here by calibration figures" in note for note in found.notes)


def test_a_predictor_of_another_machine_is_not_asked_where_no_figures_are_known(predictor, monkeypatch):
    registry.activate("cpu", registry.store_version(predictor))
    elsewhere(monkeypatch)
    found = ask(row(), calibrate=False)
    assert found.source == "unknown"
    assert found.step_time_s is None
    assert any("on this machine" in note for note in found.notes)


def test_c03_an_unseen_optimizer_is_summed_up_without_an_interval(predictor):
    asked = row(optimizer="lion")
    found = ask(asked, predictor=predictor)
    assert found.source == "analytic"
    assert not found.in_range
    assert found.step_time_s.low is None
    assert found.step_time_s.value == pytest.approx(asked.step_time_s, rel=0.15)
    assert any("no data for optimizer lion" in note for note in found.notes)


def test_out_of_range_says_why_and_is_less_sure(predictor):
    inside = ask(row(), predictor=predictor).step_time_s
    found = ask(row(width=8192, batch=4096, depth=40), predictor=predictor, plan=workload(4096, dataset_size=40_960))
    assert not found.in_range
    assert any(note.startswith("out of range: ") and "times the largest measured" in note for note in found.notes)
    assert found.step_time_s.high / found.step_time_s.low > inside.high / inside.low


def test_warnings_of_the_fit_stand_in_the_notes(predictor):
    warned = dataclasses.replace(
        predictor, provenance=dataclasses.replace(predictor.provenance, warnings=("its mean error is 80%",))
    )
    assert "the predictor in use: its mean error is 80%" in ask(row(), predictor=warned).notes
    assert not any("the predictor in use" in note for note in ask(row(), predictor=predictor).notes)


def test_the_last_batch_is_priced_at_its_own_size(predictor):
    full = ask(row(), predictor=predictor)
    found = ask(row(), predictor=predictor, plan=workload(16, dataset_size=164, epochs=1))
    extra = found.epoch_time_s.value - full.epoch_time_s.value
    groups, _ = model_step("transformer", 128, 16, 4)
    micro = [item for item in groups if item["phase"] != "optimizer"]
    scaled = [{**item, **{k: item[k] / 4 for k in ("flops", "bytes_read", "bytes_written")}} for item in micro]
    optimizer = law_s(groups) - law_s(micro)
    assert extra == pytest.approx(law_s(scaled) + optimizer, rel=0.25)
    assert extra < full.step_time_s.value
    assert any("last batch has 4 samples" in note for note in found.notes)


def test_a_profile_of_another_batch_size_is_scaled(predictor):
    half = ask(row(), predictor=predictor, plan=workload(8))
    expected = ask(row(batch=8), predictor=predictor, plan=workload(8))
    assert half.step_time_s.value == pytest.approx(expected.step_time_s.value, rel=0.1)


def test_operators_without_a_formula_leave_no_valid_interval(predictor):
    profile = dataclasses.replace(profile_of(row()), uncounted_ops={"aten.fft": 2})
    found = service.predict(workload(), settings=ONE_THREAD, profile=profile, predictor=predictor)
    assert found.source == "learned"
    assert found.step_time_s.low is None
    assert not found.in_range
    assert any("no formula" in note for note in found.notes)


CLAMPED = "batch size 64 is more than the 10 samples: each epoch is one step of 10"


def test_a_batch_beyond_the_data_is_predicted_at_the_size_of_the_data():
    large = tp.Workload("mlp", settings={"width": 8}, batch_size=64, dataset_size=10, epochs=2)
    right = tp.Workload("mlp", settings={"width": 8}, batch_size=10, dataset_size=10, epochs=2)
    expected = service.predict(right, settings=ONE_THREAD)
    # The caller may have traced the batch that was asked for.
    for profile in (None, tp.profile(large)):
        found = service.predict(large, settings=ONE_THREAD, profile=profile)
        assert found.notes[0] == CLAMPED
        assert dataclasses.replace(found, notes=found.notes[1:]) == expected
        assert found.epoch_time_s.value == pytest.approx(found.step_time_s.value)
    assert not any("is more than the" in note for note in expected.notes)
    assert not any("last batch" in note for note in expected.notes)


def six_numbers(batch_size):
    import torch

    return torch.zeros(batch_size, 6)


def test_fixed_inputs_beyond_the_data_are_scaled():
    import torch

    module = torch.nn.Linear(6, 3)
    large = tp.Workload(module, six_numbers(64), batch_size=64, dataset_size=10, epochs=1)
    right = tp.Workload(module, six_numbers, batch_size=10, dataset_size=10, epochs=1)
    found = service.predict(large, settings=ONE_THREAD)
    expected = service.predict(right, settings=ONE_THREAD)
    assert CLAMPED in found.notes
    assert found.step_time_s.value == pytest.approx(expected.step_time_s.value, rel=0.05)
    assert found.epoch_time_s.value == pytest.approx(found.step_time_s.value)


def test_more_threads_than_cores_are_told_before_torch_is_loaded():
    # The count is wrong for every workload, so none is looked at.
    code = """
import sys
from trainpilot.backends import ExecutionSettings
from trainpilot.errors import UsageError
from trainpilot.predictors import predict
try:
    predict(None, settings=ExecutionSettings(threads=9999))
except UsageError as error:
    print("9999 threads were asked" in str(error), [m for m in ("torch", "xgboost") if m in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "True []"


def test_a_given_predictor_may_be_about_a_machine_with_more_threads(predictor):
    found = ask(row(), settings=ExecutionSettings(threads=9999), predictor=predictor)
    assert any("threads 9999 (measured: 1)" in note for note in found.notes)


def test_more_threads_than_cores_are_a_usage_error():
    with pytest.raises(UsageError, match="9999 threads"):
        ask(row(), settings=ExecutionSettings(threads=9999))


def test_accumulation_saves_optimizer_steps(predictor):
    asked = row("embedding")
    each = ask(asked, predictor=predictor, plan=workload(16, epochs=1)).epoch_time_s.value
    rarely = ask(asked, predictor=predictor, plan=workload(16, epochs=1, accumulate=10)).epoch_time_s.value
    optimizer = law_s(asked.op_groups) - law_s([g for g in asked.op_groups if g["phase"] != "optimizer"])
    assert each - rarely == pytest.approx(9 * optimizer, rel=0.2)


def test_validation_costs_a_forward_pass_a_batch(predictor):
    without = ask(row(), predictor=predictor)
    found = ask(row(), predictor=predictor, plan=workload(16, validation_size=32))
    assert found.epoch_time_s == without.epoch_time_s
    forward = law_s([g for g in row().op_groups if g["phase"] == "forward"])
    assert found.total_time_s.value - without.total_time_s.value == pytest.approx(2 * 2 * forward, rel=0.25)


def test_energy_only_where_it_was_measured():
    rows = dataset(families=("mlp", "cnn", "transformer"), models=4, batches=(8, 32))
    metered = [dataclasses.replace(item, energy_j=35.0 * item.step_time_s) for item in rows]
    found = ask(row(), predictor=fit_predictor("cpu", clean(frame(metered)), n_jobs=1))
    assert found.energy_j.value == pytest.approx(35.0 * 20 * found.step_time_s.value, rel=0.15)


def test_a_damaged_predictor_is_left_out_with_a_note(predictor):
    registry.activate("cpu", registry.store_version(predictor))
    (registry.version_folder("cpu", 1) / "card.json").write_text("{")
    found = ask(row())
    assert found.source == "analytic"
    assert any("card.json is damaged" in note for note in found.notes)


def test_c05_a_profile_with_a_feature_that_is_not_finite_is_an_error(predictor):
    profile = profile_of(row())
    spoiled = dataclasses.replace(profile, features={**profile.features, "params": float("inf")})
    with pytest.raises(PredictorError, match="feature params"):
        service.predict(workload(), settings=ONE_THREAD, profile=spoiled, predictor=predictor)


def test_an_unknown_backend_is_a_usage_error(monkeypatch):
    from trainpilot.backends import get_backend

    monkeypatch.setattr(service, "get_backend", get_backend)
    with pytest.raises(UnknownNameError, match="backend"):
        ask(row(), "hip")


def test_to_dict_is_the_documented_document(predictor):
    content = ask(row(), predictor=predictor).to_dict()
    assert set(content["step_time_s"]) == {"value", "low", "high", "level"}
    assert content["source"] == "learned"
    assert isinstance(content["notes"], list)


@given(st.integers(16, 400), st.integers(1, 5), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_more_data_or_epochs_never_take_less_time(predictor, size, epochs, accumulate):
    def total(**plan):
        return service.predict(
            tp.Workload("mlp", batch_size=16, accumulate=accumulate, **plan),
            settings=ONE_THREAD,
            profile=profile_of(row()),
            predictor=predictor,
        ).total_time_s

    base = total(dataset_size=size, epochs=epochs)
    assert 0 < base.low <= base.value <= base.high
    assert total(dataset_size=size + 1, epochs=epochs).value >= base.value * (1 - 1e-12)
    assert total(dataset_size=size, epochs=epochs + 1).value > base.value


def test_importing_the_package_loads_neither_torch_nor_xgboost():
    code = (
        "import sys, trainpilot.predictors as p; p.Estimate; "
        "print([m for m in ('torch', 'xgboost', 'sklearn', 'pandas') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_every_exported_name_exists():
    import trainpilot.predictors as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError):
        _ = package.nothing
