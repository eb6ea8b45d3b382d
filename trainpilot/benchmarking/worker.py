"""The worker process: reads requests, one JSON object a line, and answers each with one line.

What models print must not disturb the answers, so these go through a private copy of standard output, and standard
output itself becomes standard error. Nothing is unpickled.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 1.0
_ON_LINUX = sys.platform.startswith("linux")


def main(executor_name: str, parent: int, memory_bytes: int | None) -> None:
    """Answer requests until there are no more.

    Args:
        executor_name: Module with ``start()``, ``execute(task)``, ``trace(configurations)`` and ``control()``.
        parent: Process id of the harness; when it ends, so does the worker.
        memory_bytes: Most private memory of this process, or None.
    """
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:  # noqa: PTH123 - a device, not a path
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    end_with(parent)
    if memory_bytes is not None:
        limit_memory(memory_bytes)
    executor = importlib.import_module(executor_name)
    executor.start()
    for line in requests:
        request = json.loads(line)
        if request["op"] == "control":
            answer = {"control_time_s": executor.control()}
        elif request["op"] == "trace":
            answer = {"traces": executor.trace(request["configurations"])}
        else:
            answer = executor.execute(request["task"])
        # On a line of its own, whatever somebody else's code may have written into the pipe.
        answers.write("\n" + json.dumps({"id": request["id"], "answer": answer}, allow_nan=False) + "\n")
        answers.flush()


def end_with(parent: int) -> None:
    """End this process when the parent ends, also while a step runs and also if the parent was killed."""
    if _ON_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel knew
            os._exit(1)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def limit_memory(memory_bytes: int) -> None:
    """Limit the private memory of this process, so that an allocation beyond it fails like any other error.

    On Linux this is RLIMIT_DATA: it counts private writable memory only. RLIMIT_AS would also count what is merely
    reserved, of which accelerator drivers take terabytes. Elsewhere the limit does not exist and the harness watches
    the resident set instead.
    """
    if _ON_LINUX:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if hard != resource.RLIM_INFINITY:
            memory_bytes = min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None)
