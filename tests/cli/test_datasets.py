"""Commands on a dataset on disk, and predictors that are handed on."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.predictors.rows import dataset
from trainpilot.cli import main
from trainpilot.predictors import load_predictor
from trainpilot.store import export_parquet, open_store


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset of two rounds, on one thread."""
    path = tmp_path_factory.mktemp("dataset") / "small.parquet"
    with open_store("sqlite://") as store:
        for row in dataset(models=3, repetitions=2, steps=10):
            store.append(row)
        export_parquet(store, path)
    return path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert main([str(argument) for argument in arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_fitting_a_dataset_twice_gives_the_same_bytes(
    parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    found = shown(capsys, "fit", "--dataset", parquet, "--out", first, "--json")
    assert found["rows"] == 180
    shown(capsys, "fit", "--dataset", parquet.parent, "--out", second, "--json")
    assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in second.iterdir())
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_an_existing_folder_is_not_overwritten(
    parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--dataset", str(parquet), "--out", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_predictor_is_handed_on(parquet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    shown(capsys, "fit", "--dataset", parquet, "--out", made, "--json")
    found = shown(capsys, "predictor", "import", made, "--json")
    assert found == {"schema": 1, "backend": "cpu", "version": 1, "active": True}
    shown(capsys, "predictor", "export", tmp_path / "given", "--json")
    assert load_predictor(tmp_path / "given").provenance == load_predictor(made).provenance
    assert shown(capsys, "predictor", "import", made, "--no-use", "--json")["version"] == 2
    (made / "model.pkl").write_bytes(b"x")
    assert main(["predictor", "import", str(made)]) == 1
    assert "pickles never" in capsys.readouterr().err


def test_label_noise_of_a_dataset_on_disk(parquet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, "data", "noise", parquet, "--json")
    assert found["configurations"] == 90
    rounds: dict[str, list[float]] = {}
    for row in dataset(models=3, repetitions=2, steps=10):
        assert row.step_time_s is not None
        rounds.setdefault(row.config_key, []).append(row.step_time_s)
    expected = statistics.mean(abs(first / second - 1) for first, second in rounds.values())
    assert found["label_noise"] == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("gap_s", [0.0, 30.0])
def test_an_evaluation_with_its_figures(gap_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = dataset(families=["mlp", "cnn", "transformer"], models=4, batches=[4, 64], steps=10)
    with open_store("sqlite://") as store:
        for number, row in enumerate(rows):
            store.append(dataclasses.replace(row, created_at=1.7e9 + number * gap_s))
        export_parquet(store, tmp_path / "rows.parquet")
    found = shown(capsys, "evaluate", "--dataset", tmp_path / "rows.parquet", "--plots", tmp_path / "plots", "--json")
    assert set(found["splits"]) == {"random_by_model", "leave_one_family_out", "largest_fifth", "leave_one_machine_out"}
    # Rows 30 s apart take half a minute each; rows without a distance do not tell how long profiling takes.
    assert [point["minutes"] for point in found["learning_curve"]] == [
        pytest.approx(point["configurations"] / 2) if gap_s else None for point in found["learning_curve"]
    ]
    assert found["learning_curve"][-1]["mape"] < 0.5
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == ["errors_by_family.png", "errors_by_split.png", "learning_curve.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())
