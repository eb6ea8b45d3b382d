"""Run a function in a child process with a time limit: what may hang or abort must not take the program with it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_REAP_S = 2.0  # to wait for a killed child; one stuck in the kernel is left behind


@dataclass(frozen=True)
class ChildOutcome:
    """What became of the child.

    Attributes:
        status: ``ok``: the function returned; ``raised``: it raised; ``died``: the process ended before that;
            ``timeout``: it was stopped at the time limit.
        value: What the function returned, if ``ok``.
        reason: What went wrong, in words, otherwise.
    """

    status: Literal["ok", "raised", "died", "timeout"]
    value: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def run_in_child(target: str, *arguments: str, timeout_s: float) -> ChildOutcome:
    """Call ``target(*arguments)`` in a new Python process.

    The child and what it started are killed at the time limit. What it prints never reaches this program's output.

    Args:
        target: ``package.module:function``; the function returns a dict that JSON can hold.
        arguments: Passed to the function.
        timeout_s: Time limit in s, start of the interpreter included.
    """
    # The child must find the same packages, also when they were put on the path by hand.
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import answer; answer()", target, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return ChildOutcome("timeout", reason=f"no answer within {timeout_s:g} s")
    finally:
        _end(process)
    if process.returncode == 0 and out.strip():
        told = json.loads(out)
        return ChildOutcome(told["status"], told["value"], told["reason"])
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    said = f": {lines[-1]}" if lines else ""
    return ChildOutcome("died", reason=f"the probe process {_ending(process.returncode)}{said}")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the child's process group and close its pipes."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it ended just now
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def answer() -> None:
    """Entry point of the child: write one JSON object to the real standard output and nothing else."""
    target, *arguments = sys.argv[1:]
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    module, _, function = target.partition(":")
    try:
        value = getattr(importlib.import_module(module), function)(*arguments)
        content = {"status": "ok", "value": value, "reason": ""}
    except Exception as error:  # noqa: BLE001  whatever a driver raises is the answer that was asked for
        content = {"status": "raised", "value": {}, "reason": _first_line(error)}
    json.dump(content, output)
    output.close()


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
