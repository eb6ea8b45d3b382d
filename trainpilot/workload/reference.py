"""Model references: a zoo name, ``path/file.py:build`` or ``package.module:build``."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trainpilot.errors import ModelError, UsageError


@dataclass(frozen=True)
class CodeReference:
    """What a user's own file or module provides.

    Attributes:
        text: The reference as it was given.
        build: Builds the model.
        example_inputs: ``example_inputs(batch_size)`` of the same file, or None.
        example_targets: ``example_targets(batch_size)`` of the same file, or None.
        loss: ``loss(outputs, targets)`` of the same file, or None.
        digest: SHA-256 of the source file, part of the identity of the workload.
    """

    text: str
    build: Callable[..., Any]
    example_inputs: Callable[[int], Any] | None
    example_targets: Callable[[int], Any] | None
    loss: Callable[[Any, Any], Any] | None
    digest: str


def is_code_reference(text: str) -> bool:
    """True if the text names a file or module rather than a zoo model."""
    return ":" in text or text.endswith(".py")


def split_code_reference(text: str) -> tuple[str, str]:
    """Split a reference into its place and function, without importing anything.

    Raises:
        UsageError: The text is not of the form ``file.py:function`` or ``package.module:function``.
    """
    place, _, function = text.rpartition(":")
    if not place or not function.isidentifier():
        raise UsageError(f"model {text!r}: write path/file.py:build or package.module:build")
    return place, function


def require_code_file(text: str) -> None:
    """Refuse a reference to a file that does not exist, without importing anything.

    Raises:
        UsageError: The text has another form.
        ModelError: The file does not exist.
    """
    place, _ = split_code_reference(text)
    if place.endswith(".py") and not Path(place).is_file():
        raise ModelError(f"model {text!r}: there is no file {place}")


def load_code_reference(text: str) -> CodeReference:
    """Import the file or module that ``text`` names and take its builder.

    Raises:
        UsageError: The text is not of the form ``file.py:function`` or ``package.module:function``.
        ModelError: The file does not exist, raises when imported, or has no such function.
    """
    require_code_file(text)
    place, function = split_code_reference(text)
    module = _import_file(Path(place), text) if place.endswith(".py") else _import_module(place, text)
    build = getattr(module, function, None)
    if not callable(build):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ModelError(
            f"model {text!r}: {place} has no function {function!r}; it has {', '.join(sorted(names)) or 'none'}"
        )
    source = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""

    def optional(name: str) -> Any:
        value = getattr(module, name, None)
        if value is not None and not callable(value):
            raise ModelError(f"model {text!r}: {name} in {place} must be a function")
        return value

    return CodeReference(
        text=text,
        build=build,
        example_inputs=optional("example_inputs"),
        example_targets=optional("example_targets"),
        loss=optional("loss"),
        digest=digest,
    )


def _import_file(path: Path, text: str) -> ModuleType:
    name = f"_trainpilot_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelError(f"model {text!r}: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    # Registered so that dataclasses and pickling inside the file find their module; and the file's folder is
    # on the path while it is imported, as it would be if Python ran it.
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script's own sys.exit() must not end this program
        del sys.modules[name]
        raise ModelError(f"model {text!r}: importing {path} raised {_one_line(error)}") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _import_module(place: str, text: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise ModelError(f"model {text!r}: importing {place} raised {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
