"""Requests that come as signals of the operating system."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class SignalRequest:
    """Handles one signal while it is open.

    Signals reach the main thread only, so elsewhere it does nothing; nor where the process ignores the signal.

    Args:
        number: The signal.

    Attributes:
        requested: True once the signal came.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.requested = False
        self._number = number
        self._previous: Any = None

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(self._number) is not signal.SIG_IGN:
            self._previous = signal.signal(self._number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(self._number, self._previous)
            self._previous = None

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        raise NotImplementedError
