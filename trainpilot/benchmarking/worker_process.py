"""The harness's side of a worker: start it, ask it, and know why it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import psutil

from trainpilot.benchmarking.measurement import Status

DEFAULT_EXECUTOR = "trainpilot.benchmarking.execute"
_TAIL_LINES = 60
_CHUNK = 1 << 16
_POLL_S = 0.1
# How often a worker is looked at that says nothing: a process that it left behind may hold its pipe open.
_LOOK_S = 1.0
_REAP_S = 5.0
_KEPT_LINE = 300


class WorkerLostError(Exception):
    """The worker is gone; carries what that means for the row in flight.

    Args:
        status: Status of the row.
        reason: Why, in words.
    """

    def __init__(self, status: Status, reason: str) -> None:
        self.status: Status = status
        self.reason = reason
        super().__init__(reason)


class Worker:
    """A child process that measures configurations one after the other.

    Args:
        executor: Module that does the work (see ``worker.main``).
        memory_bytes: Most memory of the worker, or None for no limit.
        watch_memory: Look at the resident set while waiting, instead of leaving the limit to the kernel; default:
            where the kernel cannot (see ``worker.limit_memory``).
    """

    def __init__(
        self, executor: str = DEFAULT_EXECUTOR, memory_bytes: int | None = None, watch_memory: bool | None = None
    ) -> None:
        self._watched_bytes = (
            memory_bytes if watch_memory or (watch_memory is None and sys.platform != "linux") else None
        )
        kernel_bytes = 0 if memory_bytes is None or self._watched_bytes is not None else memory_bytes
        # The child must find the same packages, also when they were put on the path by hand.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # noqa: PTH109 - a string is needed
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainpilot.benchmarking.worker", executor, str(os.getpid()), str(kernel_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            # Its own session: Ctrl-C reaches the harness alone, and what a model starts is ended with the worker.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests = self._process.stdin
        self._answers = self._process.stdout.fileno()
        self._buffer = bytearray()
        self._asked = 0
        self._closed = False
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        # Drained all the time: a full pipe would stop a model that prints.
        self._drain = threading.Thread(target=self._keep_tail, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        if self._closed:
            return False
        try:  # not by asking for its exit code: that would free its number, by which its group is ended
            return bool(psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def measure(self, task: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Let the worker measure a configuration (see ``execute.execute``).

        Raises:
            WorkerLostError: The worker ended, or was ended at the time or memory limit.
        """
        return self._ask({"op": "measure", "task": dict(task)}, timeout_s)

    def control(self, timeout_s: float) -> float | None:
        """Let the worker run the control workload; its time in s.

        Raises:
            WorkerLostError: The worker ended, or was ended at the time limit.
        """
        answer: float | None = self._ask({"op": "control"}, timeout_s)["control_time_s"]
        return answer

    def begin_traces(self, configurations: Sequence[Mapping[str, Any]]) -> None:
        """Let the worker trace configurations, without waiting for it (see ``execute.trace``).

        Raises:
            WorkerLostError: The worker ended.
        """
        self._send({"op": "trace", "configurations": list(configurations)})

    def traces(self, timeout_s: float) -> list[dict[str, Any] | None]:
        """What ``begin_traces`` asked for, in the same order.

        Raises:
            WorkerLostError: The worker ended, or was ended at the time limit.
        """
        answer: list[dict[str, Any] | None] = self._receive(timeout_s)["traces"]
        return answer

    def close(self) -> None:
        """End the worker and everything that it started; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._kill()
        with contextlib.suppress(OSError):  # what was not sent any more
            self._requests.close()
        self._drain.join(timeout=_REAP_S)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        if not self._drain.is_alive():
            self._process.stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self._send(request)
        return self._receive(timeout_s)

    def _send(self, request: Mapping[str, Any]) -> None:
        self._asked += 1
        try:
            self._requests.write(json.dumps({"id": self._asked, **request}, allow_nan=False).encode() + b"\n")
            self._requests.flush()
        except (BrokenPipeError, ValueError):  # a value error says that the pipe was closed
            raise self._lost() from None

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            line, end, rest = self._buffer.partition(b"\n")
            if end:
                self._buffer = rest
                answer = self._answer(line)
                if answer is not None:
                    return answer
                continue
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self.close()
                raise WorkerLostError("timeout", f"no answer within {timeout_s:.0f} s")
            wait = min(remaining, _LOOK_S if self._watched_bytes is None else _POLL_S)
            ready, _, _ = select.select([self._answers], [], [], wait)
            if ready:
                chunk = os.read(self._answers, _CHUNK)
                if not chunk:
                    raise self._lost()
                self._buffer += chunk
            elif not self.alive:
                raise self._lost()
            elif self._watched_bytes is not None:
                self._check_memory(self._watched_bytes)

    def _answer(self, line: bytearray) -> dict[str, Any] | None:
        """The answer to the last request, or None for a line that something else wrote into the pipe."""
        try:
            found = json.loads(line)
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("id") != self._asked:
            return None
        answer: dict[str, Any] = found["answer"]
        return answer

    def _check_memory(self, limit: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = psutil.Process(self.pid).memory_info().rss
            if used > limit:
                self.close()
                raise WorkerLostError("oom", f"used {used / 2**20:.0f} MiB, the limit is {limit / 2**20:.0f} MiB")

    def _lost(self) -> WorkerLostError:
        """Why the worker ended by itself."""
        end = time.monotonic() + _REAP_S
        while self.alive and time.monotonic() < end:
            time.sleep(0.01)
        self.close()
        code = self._process.returncode
        last = next((line for line in reversed(self._tail) if line.strip()), "")
        said = f": {last.strip()}" if last else ""
        if code is None or code >= 0:
            return WorkerLostError("failed", f"the worker ended with exit code {code}{said}")
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":
            said = " (the system does that when memory runs out)"
        else:  # an abort leaves its message on top of the stack that it prints
            fatal = next((line for line in self._tail if "Fatal" in line or "rror" in line), last)
            said = f": {fatal.strip()}" if fatal else ""
        return WorkerLostError("killed", f"the worker was ended by {name}{said}")

    def _kill(self) -> None:
        # Also where the worker ended by itself: what it started may still run. Nothing may be left of the group, or,
        # on some systems, only the remains of the worker.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: left behind
            self._process.wait(_REAP_S)

    def _keep_tail(self) -> None:
        assert self._process.stderr is not None
        # Read in pieces of bounded size: a model may print megabytes without a line break.
        while piece := self._process.stderr.readline(_CHUNK):
            self._tail.append(piece[:_KEPT_LINE].decode(errors="replace"))
