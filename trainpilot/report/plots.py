"""Figures of an evaluation, drawn from its JSON alone. Needs matplotlib (the ``plots`` extra)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainpilot.errors import DataError, UsageError

_OURS = "trainpilot"


def require_matplotlib() -> None:
    """Refuse to draw where matplotlib is not installed, before anything is computed.

    Raises:
        UsageError: It is not installed; the text says how to install it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib: pip install 'trainpilot[plots]'")


def plot_evaluation(result: Mapping[str, Any], folder: Path) -> tuple[Path, ...]:
    """Draw the errors by split and method, by family, and the learning curve.

    Args:
        result: What ``trainpilot.predictors.evaluate`` gives.
        folder: Where the files go; it is made if it does not exist.

    Returns:
        The files, those without anything to show left out.

    Raises:
        DataError: The folder cannot be written.
    """
    from matplotlib.figure import Figure

    splits = {name: found["methods"] for name, found in result["splits"].items() if "methods" in found}
    figures: dict[str, Figure] = {}
    if splits:
        figures["errors_by_split.png"] = _by_split(splits)
    families = splits.get("leave_one_family_out", {}).get(_OURS, {}).get("by_family", {})
    if families:
        figures["errors_by_family.png"] = _by_family(families)
    if result.get("learning_curve"):
        figures["learning_curve.png"] = _learning_curve(result["learning_curve"])
    paths = []
    for name, figure in figures.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror or error}") from None
        paths.append(path)
    return tuple(paths)


def _by_split(splits: Mapping[str, Mapping[str, Any]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(splits), 4))
    for position, (split, methods) in enumerate(splits.items(), 1):
        axes = figure.add_subplot(1, len(splits), position)
        names = list(methods)
        # Mean errors of naive methods reach thousands of percent: the scale is logarithmic.
        axes.barh(
            names, [100 * methods[name]["mape"] for name in names], color=["C1" if n == _OURS else "C0" for n in names]
        )
        axes.set_xscale("log")
        axes.set_xlabel("mean error in %")
        axes.set_title(split)
    figure.tight_layout()
    return figure


def _by_family(families: Mapping[str, float]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 0.3 * len(families) + 1))
    axes = figure.add_subplot()
    ordered = sorted(families, key=lambda name: families[name])
    axes.barh(ordered, [100 * families[name] for name in ordered])
    axes.set_xlabel("mean error in % where the family is left out")
    return figure


def _learning_curve(points: list[Mapping[str, Any]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.add_subplot()
    minutes = [point["minutes"] for point in points]
    timed = None not in minutes
    at = minutes if timed else [point["configurations"] for point in points]
    for key, label in (("mape", "mean"), ("median_ape", "median")):
        axes.plot(at, [100 * point[key] for point in points], marker="o", label=label)
    axes.set_xscale("log")
    axes.set_xlabel("minutes of profiling" if timed else "profiled configurations")
    axes.set_ylabel("error on unseen models in %")
    axes.legend()
    return figure
