"""Shared fixtures: no test ever reads or writes the user's own data folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own."""
    folder = tmp_path_factory.mktemp("trainpilot-data")
    monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(folder))
    # Only tests of the reference predictor itself use the one that is shipped: answers must not depend on the machine.
    monkeypatch.setenv("TRAINPILOT_REFERENCE_DIR", str(folder / "no-reference"))
    monkeypatch.delenv("TRAINPILOT_STORE", raising=False)
    return folder
