"""Ctrl-C as a request to stop at the next step boundary."""

from __future__ import annotations

import signal
from types import FrameType

from trainpilot.signals import SignalRequest


class StopRequest(SignalRequest):
    """While it is open, the first Ctrl-C asks to stop and the second one interrupts at once."""

    def __init__(self) -> None:
        super().__init__(signal.SIGINT)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
