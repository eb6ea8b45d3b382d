"""One fitted predictor for all tests that only read it, and a data folder of each test's own."""

from __future__ import annotations

import pytest

from tests.predictors.rows import dataset, frame
from trainpilot.predictors.fitting import fit_predictor
from trainpilot.predictors.labels import clean


@pytest.fixture(autouse=True)
def _own_data_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture(scope="session")
def rows():
    return dataset(models=4)


@pytest.fixture(scope="session")
def labels(rows):
    return clean(frame(rows))


@pytest.fixture(scope="session")
def predictor(labels):
    return fit_predictor("cpu", labels, n_jobs=1)
