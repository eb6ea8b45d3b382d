"""Fitting from the dataset: validation, promotion, rollback."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.predictors.rows import dataset, frame
from trainpilot.errors import ArtifactError, NoDataError, UsageError
from trainpilot.predictors import (
    active_version,
    fit,
    fitting,
    list_versions,
    load_active,
    rollback,
    version_folder,
)
from trainpilot.predictors.registry import activate

SMALL = {"families": ("mlp", "cnn", "lstm"), "models": 4, "batches": (8, 32)}


class StoreDouble:
    """Gives rows as the store does."""

    def __init__(self, rows):
        self._rows = rows

    def frame(self, status="ok", simulated=False):
        return frame([row for row in self._rows if row.status == status and row.simulated == simulated])

    def operators_by_row(self):
        return {}


def fit_rows(rows, **options):
    return fit(StoreDouble(rows), machine_ids={"here"}, **options)


def test_a_few_rows_give_a_predictor_that_is_in_use():
    report = fit_rows(dataset(**SMALL))
    found = report.fits[0]
    assert (found.backend, found.version, found.promoted) == ("cpu", 1, True)
    assert found.validation == "leave one family out, 3 families"
    assert found.metrics["family"]["mape"] < 0.25
    assert found.predictor.parts_in_use.startswith("additive model")
    assert active_version("cpu") == 1
    loaded = load_active("cpu")
    assert loaded is not None
    assert loaded.provenance.data_hash == found.predictor.provenance.data_hash
    json.dumps(report.to_dict(), allow_nan=False)


def test_the_real_store_gives_what_fit_reads(tmp_path):
    from trainpilot.store import open_store

    url = f"sqlite:///{tmp_path / 'timings.sqlite'}"
    rows = dataset(**SMALL)
    with open_store(url) as store:
        for row in rows:
            store.append(row)
    report = fit(url, machine_ids={"here"})
    expected = fit_rows(rows, folder=tmp_path / "other").fits[0].predictor.provenance
    assert report.fits[0].predictor.provenance.data_hash == expected.data_hash


def test_only_train_steps_of_the_asked_machines_and_real_backends_are_labels():
    rows = dataset(**SMALL)
    foreign = [dataclasses.replace(row, machine_id="there", step_time_s=99.0) for row in rows]
    forward = [dataclasses.replace(row, phase="forward", step_time_s=99.0) for row in rows]
    failed = [dataclasses.replace(row, status="oom", step_time_s=None) for row in rows]
    pretended = [dataclasses.replace(row, backend="simulated", simulated=True) for row in rows]
    report = fit_rows([*rows, *foreign, *forward, *failed, *pretended])
    assert [item.backend for item in report.fits] == ["cpu"]
    assert report.fits[0].predictor.provenance.rows == len(rows)
    both = fit_rows([*rows, *pretended], include_simulated=True)
    assert [item.backend for item in both.fits] == ["cpu", "simulated"]


def test_no_rows_and_too_few_rows_name_the_command():
    with pytest.raises(NoDataError, match="no row of this machine: run `trainpilot benchmark --quick`"):
        fit_rows([])
    with pytest.raises(NoDataError, match="backend cpu: 2 usable rows, 8 are needed"):
        fit_rows(dataset(families=("mlp",), models=1, batches=(8, 16)))
    bad = [dataclasses.replace(row, step_time_s=0.0) for row in dataset(families=("mlp",), models=5, batches=(8,))]
    with pytest.raises(NoDataError, match="5 dropped: step time is not above 0"):
        fit_rows(bad)
    with pytest.raises(UsageError):
        fit_rows([], min_rows=0)


def test_c06_one_model_cannot_be_validated_and_does_not_replace_a_validated_one():
    single = dataset(families=("mlp",), models=1, batches=(1, 2, 4, 8, 16, 32, 64, 128))
    found = fit_rows(single).fits[0]
    assert found.validation == "cannot be validated: all rows are of one model"
    assert found.metrics == {}
    assert found.promoted
    fit_rows(dataset(**SMALL))
    again = fit_rows(single).fits[0]
    assert not again.promoted
    assert "cannot be validated" in again.decision


def test_c06_the_report_names_grouping_and_number_of_groups():
    one_family = fit_rows(dataset(families=("mlp",), models=12, batches=(8,))).fits[0]
    assert one_family.validation == "grouped by model, 12 models of one family"


def test_a_challenger_on_more_of_the_same_data_is_put_to_use():
    rows = dataset(**SMALL)
    fit_rows(rows)
    found = fit_rows([*rows, *dataset(**{**SMALL, "families": ("vit",)})]).fits[0]
    assert found.promoted
    assert found.version == 2
    assert "held-out configurations" in found.decision
    assert active_version("cpu") == 2


def test_a_challenger_with_swapped_features_is_not_put_to_use(monkeypatch):
    rows = dataset(**SMALL)
    fit_rows(rows)
    right = fitting.fit_predictor

    def swapped(name, labels, **options):
        table = dataclasses.replace(labels.table, work=np.roll(labels.table.work, 5, axis=0))
        return right(name, dataclasses.replace(labels, table=table), **options)

    monkeypatch.setattr(fitting, "fit_predictor", swapped)
    found = fit_rows(rows).fits[0]
    assert not found.promoted
    assert found.version is None
    assert "not put to use" in found.decision
    assert active_version("cpu") == 1
    assert list_versions("cpu") == (1,)


def test_rollback_goes_back_in_the_order_of_use():
    rows = dataset(**SMALL)
    for _ in range(3):
        assert fit_rows(rows).fits[0].promoted
    assert active_version("cpu") == 3
    assert rollback("cpu") == 2
    assert fit_rows(rows).fits[0].version == 4
    assert rollback("cpu") == 2
    assert rollback("cpu") == 1
    with pytest.raises(NoDataError, match="no earlier predictor"):
        rollback("cpu")
    assert list_versions("cpu") == (1, 2, 3, 4)
    with pytest.raises(NoDataError):
        rollback("ane")


def test_a_fit_can_leave_the_one_in_use_alone():
    found = fit_rows(dataset(**SMALL), promote=False).fits[0]
    assert not found.promoted
    assert active_version("cpu") is None
    assert load_active("cpu") is None


def test_a_damaged_predictor_in_use_is_replaced_with_a_warning():
    rows = dataset(**SMALL)
    fit_rows(rows)
    (version_folder("cpu", 1) / "booster.ubj").write_bytes(b"")
    with pytest.raises(ArtifactError):
        load_active("cpu")
    found = fit_rows(rows).fits[0]
    assert found.version == 2
    assert "could not be read" in found.warnings[0]
    assert load_active("cpu") is not None


def test_contended_rows_that_had_to_be_used_are_reported():
    found = fit_rows([dataclasses.replace(row, contended=True) for row in dataset(**SMALL)]).fits[0]
    assert "24 of 24 rows were measured while something else used the machine" in found.warnings[0]


def test_the_first_predictor_must_beat_calibration_figures_alone():
    # Each family is off by another factor, so what two of them teach makes the third worse.
    factors = {"mlp": 100.0, "cnn": 0.01, "lstm": 1.0}
    rows = [dataclasses.replace(row, step_time_s=row.step_time_s * factors[row.family]) for row in dataset(**SMALL)]
    found = fit_rows(rows).fits[0]
    assert not found.promoted
    assert "of calibration figures alone on 24 held-out configurations" in found.decision
    assert active_version("cpu") is None
    right = fit_rows(dataset(**SMALL)).fits[0]
    assert right.promoted
    assert "of calibration figures alone on 24 held-out configurations" in right.decision


def test_rows_without_calibration_have_nothing_to_be_compared_with():
    factors = {"mlp": 100.0, "cnn": 0.01, "lstm": 1.0}
    rows = [
        dataclasses.replace(row, step_time_s=row.step_time_s * factors[row.family], calibration={})
        for row in dataset(**SMALL)
    ]
    found = fit_rows(rows).fits[0]
    assert found.promoted
    assert found.decision == "put to use: there was no predictor before"
    # A large error is told, and it stays with the stored predictor.
    assert any("mean error on unseen workloads is" in text for text in found.warnings)
    stored = load_active("cpu")
    assert stored is not None
    assert stored.provenance.warnings == found.warnings


def test_a_small_error_is_no_warning():
    found = fit_rows(dataset(**SMALL)).fits[0]
    assert not any("mean error" in text for text in found.warnings)


def test_a_dataset_that_cannot_be_read_is_told_without_xgboost(tmp_path):
    corrupt = tmp_path / "corrupt.sqlite"
    corrupt.write_bytes(b"no database" * 100)
    code = """
import sys
from trainpilot.errors import TrainPilotError
from trainpilot.predictors import fit
for url in ("bogus", sys.argv[1]):
    try:
        fit(url)
    except TrainPilotError as error:
        print(type(error).__name__)
print([name for name in ("torch", "xgboost", "sklearn", "pandas") if name in sys.modules])
"""
    shown = subprocess.run(
        [sys.executable, "-c", code, f"sqlite:///{corrupt}"], capture_output=True, text=True, check=True
    )
    assert shown.stdout.split("\n")[:3] == ["UsageError", "StoreCorruptError", "[]"]


def test_a_damaged_pointer_is_refused_and_repaired_by_the_next_fit(tmp_path):
    rows = dataset(**SMALL)
    fit_rows(rows, folder=tmp_path)
    pointer = tmp_path / "cpu" / "active"
    for text in ("", "garbage", "17"):
        pointer.write_text(text)
        with pytest.raises(ArtifactError, match="active"):
            load_active("cpu", tmp_path)
    assert fit_rows(rows, folder=tmp_path).fits[0].promoted
    assert load_active("cpu", tmp_path) is not None


def test_only_stored_versions_can_be_put_to_use(tmp_path):
    with pytest.raises(UsageError, match="no predictor 3; stored: none"):
        activate("cpu", 3, tmp_path)


def test_a_read_only_folder_is_one_clear_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(ArtifactError, match="cannot be written"):
        fit_rows(dataset(**SMALL), folder=blocked)
