"""Settings of the program: flag > ``TRAINPILOT_*`` > ``trainpilot.toml`` or ``[tool.trainpilot]`` > default."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainpilot.errors import SettingsError

ENV_PREFIX = "TRAINPILOT_"


class Settings(BaseModel):
    """What can be configured; each field may be set as ``TRAINPILOT_<FIELD>`` or in a TOML file.

    Attributes:
        data_dir: Folder of the store, calibrations and fitted predictors.
        store: SQLAlchemy URL of the timing dataset, or None for ``<data_dir>/timings.sqlite``.
        reference_dir: Folder of the reference predictors, or None for those that come with the library.
        level: Nominal coverage of prediction intervals, between 0.5 and 0.99.
        probe_timeout_s: Time limit of one backend probe, in seconds.
        worker_memory_bytes: Memory limit of a benchmark worker, or None for 90% of what is available.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_data_dir("trainpilot", appauthor=False)))
    store: str | None = None
    reference_dir: Path | None = None
    level: float = Field(default=0.9, ge=0.5, le=0.99)
    probe_timeout_s: float = Field(default=30.0, gt=0)
    worker_memory_bytes: int | None = Field(default=None, gt=0)

    @property
    def store_url(self) -> str:
        """SQLAlchemy URL of the timing dataset."""
        return self.store or f"sqlite:///{self.data_dir / 'timings.sqlite'}"

    @property
    def predictors_dir(self) -> Path:
        """Folder of the predictors fitted on this machine."""
        return self.data_dir / "predictors"

    @property
    def calibration_dir(self) -> Path:
        """Folder of the cached calibration figures."""
        return self.data_dir / "calibration"


def load_settings(
    overrides: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Collect the settings from all sources.

    Args:
        overrides: Values of command-line flags; those that are None are ignored.
        environ: Environment to read instead of ``os.environ``.
        folder: Folder in which ``trainpilot.toml`` or ``pyproject.toml`` is looked for; default: the current one.

    Raises:
        SettingsError: A source has an unknown name, a value of the wrong kind, or is not TOML.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, tuple[str, Any]] = {}
    for origin, found in (
        _read_toml(Path.cwd() if folder is None else folder),
        ("environment", _read_environment(environ)),
        ("command line", {k: v for k, v in (overrides or {}).items() if v is not None}),
    ):
        for name, value in found.items():
            values[name] = (origin, value)
    try:
        return Settings(**{name: value for name, (_, value) in values.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        origin = values[name][0]
        shown = f"{ENV_PREFIX}{name.upper()} in the environment" if origin == "environment" else f"{name} in {origin}"
        if first["type"] == "extra_forbidden":
            raise SettingsError(f"{shown}: no such setting; valid: {', '.join(Settings.model_fields)}") from None
        raise SettingsError(f"{shown}: {first['msg']}, got {first['input']!r}") from None


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    # Other TRAINPILOT_ variables may belong to scripts around the program, so only known names are taken.
    given = {field: environ.get(f"{ENV_PREFIX}{field.upper()}", "") for field in Settings.model_fields}
    return {field: value for field, value in given.items() if value != ""}


def _read_toml(folder: Path) -> tuple[str, dict[str, Any]]:
    own = folder / "trainpilot.toml"
    project = folder / "pyproject.toml"
    path = own if own.is_file() else project
    if not path.is_file():
        return str(path), {}
    try:
        status = path.stat()
        content = _parsed(path, status.st_mtime_ns, status.st_size)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        if path == project:  # somebody else's broken file is not this program's business
            return str(path), {}
        raise SettingsError(f"{path} is not valid TOML: {error}") from None
    table = content if path == own else content.get("tool", {}).get("trainpilot", {})
    return str(path), dict(table)


@functools.lru_cache(maxsize=4)
def _parsed(path: Path, changed: int, size: int) -> dict[str, Any]:  # noqa: ARG001 (part of the cache key)
    return tomllib.loads(path.read_text(encoding="utf-8"))
