"""Which code belongs to libraries whose functions and globals nobody changes while a program runs."""

from __future__ import annotations

import functools
import sys
import sysconfig
import weakref
from pathlib import Path

import torch

# Follow no globals into these: their own state is not what a user varies between two profiles.
_NAMES = ("torch", "torchvision", "torchaudio", "numpy", "einops", "transformers")
_SITE = Path(torch.__file__).resolve().parents[1]
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
_PACKAGES = (Path(__file__).resolve().parents[1], *(_SITE / name for name in _NAMES))
HEAP_TYPE = 1 << 9  # flag of a class in CPython: it was made while the program ran, and can be written to
_known_classes: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


@functools.lru_cache(maxsize=4096)
def is_library_file(name: str | None) -> bool:
    """True for a file of the standard library, of PyTorch, of this package, or of a few libraries of layers."""
    if name is None:
        return False
    if name.startswith("<frozen "):
        return True
    path = Path(name).resolve()
    if any(path.is_relative_to(folder) for folder in _PACKAGES):
        return True
    installed = {"site-packages", "dist-packages"}
    return path.is_relative_to(_STANDARD) and installed.isdisjoint(path.relative_to(_STANDARD).parts)


def is_library_module(name: str) -> bool:
    """True if the module of this name was loaded from a library, or is built into Python."""
    if name in sys.builtin_module_names:
        return True
    module = sys.modules.get(name)
    return module is not None and is_library_file(getattr(module, "__file__", None))


def is_library_class(kind: type) -> bool:
    """True if a class is defined in a library."""
    known = _known_classes.get(kind)
    if known is None:
        known = _known_classes[kind] = is_library_module(kind.__module__)
    return known
