"""Versions of the software that decides speed, read from package metadata so that nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform

import trainpilot

# Packages whose kernels or overhead appear in step times.
_PACKAGES = ("torch", "numpy", "mkl", "intel-openmp", "triton", "coremltools", "xgboost")


def versions() -> dict[str, str]:
    """Versions by name: ``python``, ``trainpilot``, and each package that is installed."""
    found = {"python": platform.python_version(), "trainpilot": trainpilot.__version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
