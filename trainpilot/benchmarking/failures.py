"""What an exception of a measured configuration means for its row."""

from __future__ import annotations

from trainpilot.benchmarking.measurement import Status
from trainpilot.errors import BackendError, NonFiniteLossError

_LONGEST_REASON = 500
# PyTorch reports these as plain RuntimeErrors.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "cannot allocate memory")
_NO_KERNEL = (
    "not implemented for '",
    "no kernel image is available",
    "not currently supported on the",
    "could not create a primitive",
)


def failure_of(error: BaseException) -> tuple[Status, str]:
    """Status and one-line reason of a row whose configuration raised ``error``.

    Errors that were raised from another one count as that other one, too: a builder that runs out of memory is out
    of memory.
    """
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    if any(_is_out_of_memory(link) for link in chain):
        return "oom", one_line(error)
    if isinstance(error, NonFiniteLossError):
        return "nonfinite_loss", one_line(error)
    if any(_is_unsupported(link) for link in chain):
        return "unsupported", one_line(error)
    return "failed", one_line(error)


def _is_out_of_memory(error: BaseException) -> bool:
    # By name, so that torch need not be loaded here.
    names = {kind.__name__ for kind in type(error).__mro__}
    return "MemoryError" in names or "OutOfMemoryError" in names or _says(error, _OUT_OF_MEMORY)


def _is_unsupported(error: BaseException) -> bool:
    return isinstance(error, BackendError | NotImplementedError) or _says(error, _NO_KERNEL)


def _says(error: BaseException, signs: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in signs)


def one_line(error: BaseException) -> str:
    """Name and text of an exception on one line, cut where it is very long."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
