from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from trainpilot.hardware import cached_calibration, calibrate, calibration, machine

FIGURES = {"matmul_flops_per_s": 5e10, "dispatch_s": 3e-6}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, str]]:
    """Calls of the probes, which are replaced by constants."""
    calls: list[tuple[str, int, str]] = []

    def run(device: str, threads: int, dtype: str) -> dict[str, float]:
        calls.append((device, threads, dtype))
        return dict(FIGURES)

    monkeypatch.setattr(calibration, "run_probes", run)
    return calls


def test_probed_once_and_then_read(tmp_path: Path, runs: list[tuple[str, int, str]]) -> None:
    first = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    second = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert runs == [("cpu", 1, "float32")]
    assert second == first
    assert dict(first.figures) == FIGURES
    assert first.machine_id == machine().machine_id
    assert "torch" in first.versions
    assert first.created_at > 1.7e9
    assert cached_calibration("cpu", 1, "float32", tmp_path) == first


def test_nothing_is_cached_yet(tmp_path: Path) -> None:
    assert cached_calibration("cpu", 1, "float32", tmp_path / "none") is None


def test_each_setting_has_its_own_figures(tmp_path: Path, runs: list[tuple[str, int, str]]) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    calibrate("cpu", "cpu", 2, "float32", tmp_path)
    calibrate("cpu", "cpu", 1, "bfloat16", tmp_path)
    calibrate("cuda", "cuda", 1, "float32", tmp_path)
    assert len(runs) == 4
    assert len(list(tmp_path.iterdir())) == 4  # and no temporary file is left


def test_refresh_probes_again(tmp_path: Path, runs: list[tuple[str, int, str]]) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    calibrate("cpu", "cpu", 1, "float32", tmp_path, refresh=True)
    assert len(runs) == 2


def test_other_library_versions_are_probed_again(
    tmp_path: Path, runs: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    monkeypatch.setattr(calibration, "versions", lambda: {"torch": "99.0"})
    assert cached_calibration("cpu", 1, "float32", tmp_path) is None
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert len(runs) == 2


def test_a_version_that_decides_no_kernel_is_no_reason_to_probe(
    tmp_path: Path, runs: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    known = calibration.versions()
    monkeypatch.setattr(calibration, "versions", lambda: {**known, "xgboost": "99.0"})
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert len(runs) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 1}',
        "\x00\x01",
        json.dumps({"schema": 2, "probes": 1}),
    ],
)
def test_a_damaged_file_is_probed_again(
    tmp_path: Path, runs: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    path = calibration.cache_path("cpu", 1, "float32", tmp_path)
    path.write_text(text)
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        found = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert dict(found.figures) == FIGURES
    assert len(runs) == 1
    assert str(path) in caplog.text
    assert cached_calibration("cpu", 1, "float32", tmp_path) == found  # and the file is good now


@pytest.mark.parametrize("value", [-1.0, 0.0, "fast", None, True, float("nan"), float("inf")])
def test_a_figure_that_cannot_be_is_damage(
    tmp_path: Path, runs: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture, value: object
) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    path = calibration.cache_path("cpu", 1, "float32", tmp_path)
    content = json.loads(path.read_text())
    content["figures"]["dispatch_s"] = value
    path.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        assert cached_calibration("cpu", 1, "float32", tmp_path) is None
    assert "dispatch_s" in caplog.text


@pytest.mark.parametrize("value", [None, "no", 0])
def test_a_file_that_does_not_tell_whether_it_was_disturbed_is_damage(
    tmp_path: Path, runs: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture, value: object
) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    path = calibration.cache_path("cpu", 1, "float32", tmp_path)
    content = json.loads(path.read_text())
    del content["disturbed"]
    if value is not None:
        content["disturbed"] = value
    path.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert "disturbed" in caplog.text
    assert len(runs) == 2
    assert cached_calibration("cpu", 1, "float32", tmp_path) is not None


def test_a_file_of_another_machine_is_not_used(
    tmp_path: Path, runs: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    calibrate("cpu", "cpu", 1, "float32", tmp_path)
    path = calibration.cache_path("cpu", 1, "float32", tmp_path)
    path.write_text(path.read_text().replace(machine().machine_id, "0" * 16))
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        assert cached_calibration("cpu", 1, "float32", tmp_path) is None
    assert "another machine" in caplog.text


def test_a_folder_that_cannot_be_written_costs_only_the_cache(
    tmp_path: Path, runs: list[tuple[str, int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING, logger="trainpilot"):
        found = calibrate("cpu", "cpu", 1, "float32", blocked)
    assert dict(found.figures) == FIGURES
    assert "cannot be kept" in caplog.text


def test_the_folder_of_the_settings_is_the_default(
    tmp_path: Path, runs: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINPILOT_DATA_DIR", str(tmp_path))
    calibrate("cpu", "cpu", 1)
    assert len(list((tmp_path / "calibration").glob("cpu-1-float32-*.json"))) == 1


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, runs: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    monkeypatch.setattr(calibration, "run_probes", lambda *_: {"dispatch_s": float("nan")})
    with pytest.raises(ValueError, match="JSON compliant"):
        calibrate("cpu", "cpu", 1, "float32", tmp_path, refresh=True)
    assert cached_calibration("cpu", 1, "float32", tmp_path) == first
    assert len(list(tmp_path.iterdir())) == 1


def test_a_busy_machine_is_probed_again_and_the_best_figures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = iter([(4e10, 5e-6, 1.0), (2e10, 3e-6, 1.0), (1e10, 9e-6, 1.0), (6e10, 4e-6, 0.0), (1e9, 1e-3, 0.0)])
    busy = [0.0]

    def run(*_: object) -> dict[str, float]:
        rate, dispatch, busy[0] = next(attempts)
        return {"matmul_flops_per_s": rate, "dispatch_s": dispatch}

    class Meter:
        def cores(self) -> float:
            return busy[0]

    monkeypatch.setattr(calibration, "run_probes", run)
    monkeypatch.setattr(calibration, "OthersMeter", Meter)
    first = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert first.disturbed
    assert dict(first.figures) == {"matmul_flops_per_s": 4e10, "dispatch_s": 3e-6}
    assert "something else used the machine" in caplog.text
    # Soon after, nothing is probed and nothing is said again.
    caplog.clear()
    assert calibrate("cpu", "cpu", 1, "float32", tmp_path) == first
    assert caplog.text == ""
    # A later call on a quiet machine improves them once, and then they are kept.
    monkeypatch.setattr(calibration.time, "time", lambda: first.created_at + 601)
    second = calibrate("cpu", "cpu", 1, "float32", tmp_path)
    assert not second.disturbed
    assert dict(second.figures) == {"matmul_flops_per_s": 6e10, "dispatch_s": 3e-6}
    assert calibrate("cpu", "cpu", 1, "float32", tmp_path) == second
