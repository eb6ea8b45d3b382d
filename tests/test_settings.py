"""Settings and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainpilot.errors import SettingsError
from trainpilot.settings import load_settings


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    (tmp_path / "trainpilot.toml").write_text("level = 0.6\nstore = 'sqlite:///file.db'\nprobe_timeout_s = 5\n")
    environ = {"TRAINPILOT_LEVEL": "0.7", "TRAINPILOT_STORE": "sqlite:///env.db", "TRAINPILOT_OTHER": "x"}
    settings = load_settings({"level": 0.8, "store": None}, environ=environ, folder=tmp_path)
    assert (settings.level, settings.store_url, settings.probe_timeout_s) == (0.8, "sqlite:///env.db", 5.0)
    assert load_settings(environ={}, folder=tmp_path.parent).level == 0.9


def test_project_table_is_read_and_own_file_beats_it(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.trainpilot]\nlevel = 0.55\n")
    assert load_settings(environ={}, folder=tmp_path).level == 0.55
    (tmp_path / "trainpilot.toml").write_text("level = 0.65\n")
    assert load_settings(environ={}, folder=tmp_path).level == 0.65


def test_default_store_lies_in_the_data_folder(tmp_path: Path) -> None:
    settings = load_settings(environ={"TRAINPILOT_DATA_DIR": str(tmp_path)}, folder=tmp_path)
    assert settings.store_url == f"sqlite:///{tmp_path}/timings.sqlite"
    assert settings.predictors_dir == tmp_path / "predictors"


@pytest.mark.parametrize(
    ("content", "environ", "message"),
    [
        ("colour = 1", {}, "colour in .*trainpilot.toml: no such setting; valid: data_dir"),
        ("level = 'high'", {}, "level in .*trainpilot.toml"),
        ("level = 2", {}, "less than or equal to 0.99"),
        ("= 3", {}, "not valid TOML"),
        ("", {"TRAINPILOT_LEVEL": "much"}, "TRAINPILOT_LEVEL in the environment"),
    ],
)
def test_wrong_settings_say_where(tmp_path: Path, content: str, environ: dict[str, str], message: str) -> None:
    (tmp_path / "trainpilot.toml").write_text(content)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(environ=environ, folder=tmp_path)
    assert "\n" not in str(caught.value)


def test_broken_pyproject_of_somebody_else_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("= broken")
    assert load_settings(environ={}, folder=tmp_path).level == 0.9


def test_a_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "trainpilot.toml"
    for text, level in (("level = 0.6", 0.6), ("level = 0.75", 0.75)):
        path.write_text(text)
        assert load_settings(environ={}, folder=tmp_path).level == level
        assert load_settings(environ={}, folder=tmp_path).level == level
    path.unlink()
    assert load_settings(environ={}, folder=tmp_path).level == 0.9
