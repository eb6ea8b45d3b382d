"""The evaluation protocol."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.predictors.rows import FIGURES, dataset, frame
from trainpilot.errors import NoDataError, UsageError
from trainpilot.predictors import evaluate
from trainpilot.predictors.baselines import METHODS

SMALL = {"families": ("mlp", "cnn", "transformer"), "models": 4, "batches": (8, 32)}
QUICK = (*(name for name in METHODS if name != "neural_network"), "trainpilot")


@pytest.fixture(scope="module")
def result():
    rows = frame(dataset(**SMALL, repetitions=2))
    found = evaluate(rows, n_jobs=1, methods=QUICK)
    # The network takes a second a fold, so it gets the split with one.
    slow = evaluate(rows, splits=("largest_fifth",), methods=("neural_network",))
    found["splits"]["largest_fifth"]["methods"] |= slow["splits"]["largest_fifth"]["methods"]
    return found


def test_every_split_has_its_methods_with_all_measures(result):
    json.dumps(result, allow_nan=False)
    assert result["configurations"] == 24
    assert result["label_noise"]["configurations"] == 24
    # Two draws of 3% noise differ by 3% * 2 / sqrt(pi) = 3.4% on average.
    assert 0.02 < result["label_noise"]["mean"] < 0.05
    for split, held in (("random_by_model", 24), ("leave_one_family_out", 24), ("largest_fifth", 4)):
        methods = result["splits"][split]["methods"]
        assert set(methods) == {*QUICK, *(["neural_network"] if split == "largest_fifth" else [])}
        for found in methods.values():
            assert {"n", "mape", "median_ape", "p90_ape", "coverage"} <= set(found)
            assert found["n"] == held
            assert 0 < found["median_ape"] <= found["p90_ape"]


def test_the_additive_law_is_found_and_the_simple_methods_are_not_as_good(result):
    methods = result["splits"]["leave_one_family_out"]["methods"]
    assert methods["trainpilot"]["mape"] < 0.2
    for name in ("rules", "flops_times_constant", "linear_regression", "plain_xgboost"):
        assert methods[name]["mape"] > methods["trainpilot"]["mape"]
        assert methods[name]["coverage"] is None
    assert set(methods["trainpilot"]["by_family"]) == set(SMALL["families"])


def test_one_machine_or_one_family_cannot_be_split(result):
    assert result["splits"]["leave_one_machine_out"] == {"skipped": "cannot be validated: fewer than two machines"}
    few = evaluate(frame(dataset(families=("mlp",), models=1)), methods=("additive",))
    assert all("cannot be validated" in split["skipped"] for split in few["splits"].values())


def test_another_machine_is_predicted_by_its_calibration():
    slow = {name: value / 3 if name.endswith("_per_s") else value * 3 for name, value in FIGURES.items()}
    rows = [*dataset(**SMALL), *dataset(**SMALL, machine_id="there", speed=3.0, calibration=slow)]
    found = evaluate(frame(rows), splits=("leave_one_machine_out",), methods=("additive", "plain_xgboost"))
    methods = found["splits"]["leave_one_machine_out"]["methods"]
    assert methods["additive"]["mape"] < 0.1
    assert methods["plain_xgboost"]["mape"] > 0.5


def test_names_and_data_are_checked():
    rows = frame(dataset(families=("mlp",), models=1))
    with pytest.raises(UsageError, match="unknown split"):
        evaluate(rows, splits=("by_luck",))
    with pytest.raises(UsageError, match="unknown method"):
        evaluate(rows, methods=("oracle",))
    with pytest.raises(NoDataError, match="backend cuda"):
        evaluate(rows, backend="cuda")
    failed = frame([dataclasses.replace(row, status="failed") for row in dataset(families=("mlp",), models=1)])
    with pytest.raises(NoDataError):
        evaluate(failed)
