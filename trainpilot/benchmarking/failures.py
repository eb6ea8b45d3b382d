"""What an exception of a measured configuration means for its row."""

from __future__ import annotations

from trainpilot.benchmarking.measurement import Status
from trainpilot.errors import BackendError, NonFiniteLossError

_LONGEST_REASON = 500
# PyTorch reports these as plain RuntimeErrors.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "cannot allocate memory")
_NO_KERNEL = ("not implemented for '", "no kernel image is available", "not currently supported on the", "could not create a primitive")


def failure_of(error: BaseException) -> tuple[Status, str]:
    """Status and one-line reason of a row whose configuration raised ``error``."""
    text = str(error).lower()
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names or any(sign in text for sign in _OUT_OF_MEMORY):
        return "oom", one_line(error)
    if isinstance(error, NonFiniteLossError):
        return "nonfinite_loss", one_line(error)
    if isinstance(error, BackendError | NotImplementedError) or any(sign in text for sign in _NO_KERNEL):
        return "unsupported", one_line(error)
    return "failed", one_line(error)


def one_line(error: BaseException) -> str:
    """Name and text of an exception on one line, cut where it is very long."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
